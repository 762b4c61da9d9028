//! Files whose classifiers are not all the model's: what fits is kept, what begins anew is said.

use crate::model::{TensorKind, catalogue, layout};

use super::tests::{ANSWERS, Written, saved};
use super::*;

#[test]
fn auxiliary_classifiers_that_a_file_lacks_begin_anew() {
    let graph = catalogue::build("googlenet", [3, 64, 64], 5, 1.0).expect("in the catalogue");
    let layout = layout::of(&graph);
    let first = crate::model::init::parameters(&graph, &layout, 3);
    let file = |keep: &dyn Fn(&str) -> bool| {
        let tensors = layout.tensors.iter().filter(|tensor| keep(&tensor.name));
        let written = tensors.map(|tensor| {
            let body = 0x3C00u16.to_le_bytes().repeat(tensor.elements());
            (&*tensor.name.clone().leak(), "Half", tensor.shape.clone(), body)
        });
        saved(&written.collect::<Vec<Written>>())
    };
    let bare = file(&|name| !name.starts_with("aux"));
    let found = fit(&open(&bare).expect("opens"), &graph, &layout, ANSWERS).expect("fits");
    let text = found.remarks.join("; ");
    assert!(text.contains("it has no auxiliary classifiers: aux1.conv.conv.weight, "), "{text}");
    for spec in layout.tensors.iter().filter(|spec| spec.kind == TensorKind::Weight) {
        let values = &found.parameters[spec.range()];
        match spec.name.starts_with("aux") {
            true => assert_eq!(values, &first[spec.range()], "{}", spec.name),
            false => assert!(values.iter().all(|value| *value == 1.0), "{}", spec.name),
        }
    }
    let cut = file(&|name| !name.starts_with("aux") && name != "fc.bias");
    let text =
        fit(&open(&cut).expect("opens"), &graph, &layout, ANSWERS).expect_err("no last layer");
    assert!(text.to_string().contains("fc.bias"), "{text}");
}

#[test]
fn a_classifier_that_fits_is_kept_beside_one_for_other_classes() {
    let graph = catalogue::build("googlenet", [3, 64, 64], 5, 1.0).expect("in the catalogue");
    let layout = layout::of(&graph);
    let with = |classes_of: &dyn Fn(&str) -> usize| {
        let written = layout.tensors.iter().map(|tensor| {
            let mut shape = tensor.shape.clone();
            if shape[0] == 5 {
                shape[0] = classes_of(&tensor.name);
            }
            let body = 0x3C00u16.to_le_bytes().repeat(shape.iter().product());
            (&*tensor.name.clone().leak(), "Half", shape, body)
        });
        saved(&written.collect::<Vec<Written>>())
    };
    let fitted = |file: &[u8]| fit(&open(file).expect("opens"), &graph, &layout, ANSWERS);
    let found = fitted(&with(&|name| if name.starts_with("aux1.") { 7 } else { 5 })).expect("fits");
    let said = "layers of it are for 7 classes, this model for 5: aux1.fc2.weight, aux1.fc2.bias \
                begin anew, with first weights of seed 3";
    assert_eq!(found.remarks.last().map(String::as_str), Some(said));
    for spec in layout.tensors.iter().filter(|spec| spec.name.starts_with("fc.")) {
        assert!(found.parameters[spec.range()].iter().all(|value| *value == 1.0), "{}", spec.name);
    }
    // A layer that contradicts itself is for no number of classes.
    for bias in [5, 6] {
        let file = with(&|name| match name {
            "fc.weight" => 7,
            "fc.bias" => bias,
            _ => 5,
        });
        let text = fitted(&file).expect_err("weight and bias differ").to_string();
        assert!(text.contains("of another shape: fc.weight (shape [7, 1024]"), "{text}");
    }
}
