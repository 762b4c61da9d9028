//! Layouts of files that programs write around a model's tensors: which of them are the model's,
//! what lies beside, and what is refused with the way out.

use super::tests::{
    Written, dictionary, f32s, file_for, fitted, model, pickle, rebuilt, refusal, saved, text,
    with_storages,
};

/// The entries of a dictionary of these tensors.
fn entries(tensors: &[Written]) -> Vec<(&'static str, Vec<u8>)> {
    let entry = |(at, t): (usize, &Written)| {
        (t.0, rebuilt(t.1, &at.to_string(), &t.2, t.2.iter().product()))
    };
    tensors.iter().enumerate().map(entry).collect()
}

/// A file of one dictionary: the small model's weights as `state_dict`, and this beside.
fn beside(more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let tensors = file_for(10, "");
    let mut outer = vec![("state_dict", dictionary(&entries(&tensors)))];
    outer.extend_from_slice(more);
    with_storages(&pickle(&dictionary(&outer)), &tensors)
}

#[test]
fn of_two_dictionaries_of_weights_none_is_guessed() {
    let tensors = file_for(10, "");
    let weights = || dictionary(&entries(&tensors));
    let file = |outer: &[(&str, Vec<u8>)]| with_storages(&pickle(&dictionary(outer)), &tensors);
    for other in ["model", "net", "model_state_dict"] {
        let said = refusal(&beside(&[(other, weights())]));
        assert!(said.contains(&format!("\"state_dict\", \"{other}\", and which are")), "{said}");
    }
    let mut whole = entries(&tensors);
    whole.push(("net", weights()));
    assert!(refusal(&file(&whole)).contains("\"net\", and which are the weights is not said"));
    let one = [("model", weights()), ("optimizer", dictionary(&entries(&tensors[..1])))];
    fitted(&file(&one), 10).expect("one has a usual name");
}

fn call(name: &str, arguments: &[u8]) -> Vec<u8> {
    [b"c", name.as_bytes(), b"\n", arguments].concat()
}

#[test]
fn data_beside_the_weights_is_passed_over_and_functions_are_refused() {
    let plain = fitted(&saved(&file_for(10, "")), 10).expect("fits").parameters;
    let namespace = call("argparse\nNamespace", &[b")\x81}", &text("lr")[..], b"K\x07sb"].concat());
    let dtype = call("numpy\ndtype", &[b"(", &text("f8")[..], b"\x89\x88tR(K\x03tb"].concat());
    let scalar = [&dtype[..], b"C\x08\0\0\0\0\0\0\xf0\x3f"].concat();
    let scalar = call("numpy.core.multiarray\nscalar", &[&b"("[..], &scalar, b"tR"].concat());
    let list = call("omegaconf.listconfig\nListConfig", b")\x81(K\x01K\x02e");
    let tensor = rebuilt("Float", "0", &file_for(10, "")[0].2, 1);
    for (about, value) in [
        ("a namespace", namespace),
        ("a scalar of numpy", scalar),
        ("a list of a class of its own", list),
        ("the state of a generator", [&b"\x8a\x10"[..], &[7; 16]].concat()),
        ("a tensor", tensor),
    ] {
        let found = fitted(&beside(&[("args", value)]), 10).expect(about);
        assert_eq!((&found.parameters, found.remarks), (&plain, vec![]), "{about}");
    }
    // A function is none, and neither is one in what an object would be given.
    let system = call("os\nsystem", &[b"(", &text("true")[..], b"tR"].concat());
    let given = call("argparse\nNamespace", &[b")\x81}", &text("lr")[..], &system, b"sb"].concat());
    // Nor a class that is called as well as made.
    let both = call("subprocess\nPopen", b"q\x07)\x81h\x07)R\x86");
    for (value, name) in [(system, "os.system"), (given, "os.system"), (both, "subprocess.Popen")] {
        let said = refusal(&beside(&[("args", value)]));
        assert!(said.contains(&format!("it asks for {name}, which no weights need")), "{said}");
        assert!(said.contains("weights_only=False)[\"state_dict\"], \"NEW.pth\")"), "{said}");
    }
}

#[test]
fn weights_are_found_by_a_usual_name_or_as_the_only_ones() {
    let tensors = file_for(10, "");
    let plain = fitted(&saved(&tensors), 10).expect("fits").parameters;
    let dictionary_of =
        |outer: &[(&str, Vec<u8>)]| with_storages(&pickle(&dictionary(outer)), &tensors);
    let weights = dictionary(&entries(&tensors));
    let only = dictionary_of(&[("generator", weights.clone()), ("epoch", b"K\x07".to_vec())]);
    let found = fitted(&only, 10).expect("fits");
    assert_eq!(found.parameters, plain);
    assert_eq!(found.remarks[0], "the tensors of \"generator\" are taken");
    let averaged = dictionary_of(&[("model", weights.clone()), ("model_ema", weights.clone())]);
    let found = fitted(&averaged, 10).expect("fits");
    assert_eq!(found.remarks, ["the tensors of \"model\" are taken, none of \"model_ema\""]);
    let two = dictionary_of(&[("generator", weights.clone()), ("critic", weights)]);
    let said = refusal(&two);
    assert!(said.contains("tensors lie in it as \"generator\", \"critic\", and which"), "{said}");
    assert!(said.contains("weights_only=True)[NAME]"), "{said}");
    let module = call("models.yolo\nModel", b")\x81");
    let said = refusal(&dictionary_of(&[("model", module.clone())]));
    assert!(said.contains("it asks for models.yolo.Model, which"), "{said}");
    assert!(said.contains("weights_only=False)[\"model\"].state_dict(), \"NEW.pth\")"), "{said}");
    // What lies beside such a model is not the model.
    let averaged = dictionary(&entries(&tensors));
    let said = refusal(&dictionary_of(&[("model", module), ("ema", averaged)]));
    assert!(said.contains("tensors lie in it as \"ema\", and which are the weights"), "{said}");
}

/// The small model's tensors under these names.
fn renamed(name: &dyn Fn(&str) -> String, more: &[Written]) -> Vec<u8> {
    let mut tensors = file_for(10, "");
    for tensor in &mut tensors {
        tensor.0 = name(tensor.0).leak();
    }
    tensors.extend_from_slice(more);
    saved(&tensors)
}

#[test]
fn a_models_tensors_are_found_behind_wrappers_and_beside_others() {
    let plain = fitted(&renamed(&str::to_owned, &[]), 10).expect("fits").parameters;
    let of_loss = |name| (name, "Float", vec![10], f32s(&[1.0; 10]));
    let body = |name: &str| !name.starts_with("fc3.");
    let partly = |name: &str| if body(name) { format!("a.module.{name}") } else { name.into() };
    for (file, remarks) in [
        (
            renamed(&|name| format!("model.{name}"), &[of_loss("criterion.weight")]),
            &[
                "6 names begin with `model.`: taken off",
                "criterion.weight beside the model: passed over",
            ][..],
        ),
        (
            renamed(&|name| name.into(), &[of_loss("loss_fn.weight")]),
            &["loss_fn.weight beside the model: passed over"],
        ),
        (
            renamed(&|name| format!("net.{name}"), &[of_loss("net.loss.pos_weight")]),
            &[
                "every name begins with `net.`: taken off",
                "net.loss.pos_weight beside the model: passed over",
            ],
        ),
        (renamed(&partly, &[]), &["4 names begin with `a.module.`: taken off"]),
        (
            renamed(&|name| name.replace('.', ".module."), &[]),
            &["6 names have a wrapper's `module.` within"],
        ),
        (
            renamed(
                &|name| format!("module.module.{name}"),
                &[("n_averaged", "Long", vec![], 3i64.to_le_bytes().to_vec())],
            ),
            &[
                "6 names begin with `module.module.`: taken off",
                "n_averaged beside the model: passed over",
            ],
        ),
    ] {
        let found = fitted(&file, 10).expect("fits");
        assert_eq!(found.parameters, plain);
        assert_eq!(found.remarks, remarks);
    }
}

#[test]
fn a_file_that_may_be_of_another_model_is_refused() {
    let extra = |name: &'static str| (name, "Float", vec![1], f32s(&[1.0]));
    let body = |name: &str| !name.starts_with("fc3.");
    // A layer more, behind the prefix or without one; parts that no wrapper has named.
    let split = |name: &str| if body(name) { format!("a.{name}") } else { format!("b.{name}") };
    for (file, expected) in [
        (
            renamed(&|name| name.into(), &[extra("fc4.weight")]),
            "1 tensors are of no layer of the model: fc4.weight",
        ),
        (
            renamed(&|name| format!("model.{name}"), &[extra("model.fc4.weight")]),
            "1 tensors are of no layer of the model: fc4.weight",
        ),
        (renamed(&split, &[]), "6 tensors are missing"),
        (renamed(&|name| name.into(), &[extra("module.fc1.weight")]), "module.fc1.weight"),
    ] {
        let said = fitted(&file, 10).expect_err("is refused");
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // Student and teacher.
    let (_, layout) = model(10);
    let again = file_for(10, "ema.");
    assert_eq!(again.len(), layout.tensors.len());
    let said = fitted(&renamed(&|name| format!("model.{name}"), &again), 10).expect_err("twice");
    assert!(
        said.contains("it holds the model twice, with `ema.` before its names and with `model.`"),
        "{said}"
    );
}
