//! Files as their programs write them, and files that mean harm: each is refused by name.

use std::collections::BTreeSet;

use flate2::Crc;

use crate::model::{Graph, Layout, catalogue, layout};

use super::*;

/// First weights are those of this seed; classes have no names.
pub(super) const ANSWERS: Answers<'_> = Answers { seed: 3, classes: &[] };

/// A tensor to be written: name, PyTorch's word for its elements, shape, its bytes.
pub(super) type Written = (&'static str, &'static str, Vec<usize>, Vec<u8>);

pub(super) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn text(text: &str) -> Vec<u8> {
    [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

pub(super) fn whole(number: usize) -> Vec<u8> {
    [&[0x8A, 8][..], &(number as i64).to_le_bytes()].concat()
}

pub(super) fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [&b"("[..], &items.concat(), b"t"].concat()
}

/// The instructions that `torch.save` writes for a tensor whose storage is `data/key`.
pub(super) fn rebuilt(word: &str, key: &str, shape: &[usize], elements: usize) -> Vec<u8> {
    rebuilt_with(&[], (word, key), shape, elements)
}

/// The same with more arguments behind the usual six.
fn rebuilt_with(
    more: &[Vec<u8>],
    (word, key): (&str, &str),
    shape: &[usize],
    elements: usize,
) -> Vec<u8> {
    let class = format!("ctorch\n{word}Storage\n").into_bytes();
    let place = [text("storage"), class, text(key), text("cpu"), whole(elements)];
    let sizes: Vec<Vec<u8>> = shape.iter().map(|size| whole(*size)).collect();
    let steps: Vec<Vec<u8>> =
        (0..shape.len()).map(|at| whole(shape[at + 1..].iter().product::<usize>())).collect();
    let mut arguments = vec![
        [tuple(&place), b"Q".to_vec()].concat(),
        whole(0),
        tuple(&sizes),
        tuple(&steps),
        b"\x89ccollections\nOrderedDict\n)R".to_vec(),
    ];
    arguments.extend_from_slice(more);
    [b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), tuple(&arguments), b"R".to_vec()].concat()
}

pub(super) fn dictionary(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs: Vec<u8> =
        entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [&b"ccollections\nOrderedDict\n)R("[..], &pairs, b"u"].concat()
}

pub(super) fn pickle(body: &[u8]) -> Vec<u8> {
    [&b"\x80\x02"[..], body, b"."].concat()
}

/// An archive of stored entries.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, body) in entries {
        let from = file.len() as u32;
        let mut sum = Crc::new();
        sum.update(body);
        let length = body.len() as u32;
        // Version, flags, method, time, date; checksum, packed size, size, lengths.
        let mut fields = [0x14u16, 0, 0, 0, 0].map(u16::to_le_bytes).concat();
        fields.extend([sum.sum(), length, length].map(u32::to_le_bytes).concat());
        fields.extend([name.len() as u16, 0].map(u16::to_le_bytes).concat());
        file.extend([zip::START, &fields, name.as_bytes(), body].concat());
        directory.extend([b"PK\x01\x02\x14\0", &fields[..], &[0; 10]].concat());
        directory.extend([&from.to_le_bytes(), name.as_bytes()].concat());
    }
    let (count, from) = (entries.len() as u16, file.len() as u32);
    let counts = [0, 0, count, count].map(u16::to_le_bytes).concat();
    let places = [directory.len() as u32, from].map(u32::to_le_bytes).concat();
    [&file[..], &directory, b"PK\x05\x06", &counts, &places, &[0; 2]].concat()
}

/// A state dictionary as `torch.save` writes it.
pub(super) fn saved(tensors: &[Written]) -> Vec<u8> {
    let entries: Vec<(&str, Vec<u8>)> = tensors
        .iter()
        .enumerate()
        .map(|(at, (name, word, shape, _))| {
            (*name, rebuilt(word, &at.to_string(), shape, shape.iter().product()))
        })
        .collect();
    with_storages(&pickle(&dictionary(&entries)), tensors)
}

pub(super) fn with_storages(data: &[u8], tensors: &[Written]) -> Vec<u8> {
    let names: Vec<String> = (0..tensors.len()).map(|at| format!("w/data/{at}")).collect();
    let mut entries: Vec<(&str, &[u8])> = vec![("w/data.pkl", data), ("w/byteorder", b"little")];
    entries.extend(names.iter().zip(tensors).map(|(name, t)| (name.as_str(), &t.3[..])));
    archive(&entries)
}

pub(super) fn refusal(bytes: &[u8]) -> String {
    open(bytes).expect_err("refused").to_string()
}

pub(super) fn model(classes: usize) -> (Graph, Layout) {
    let graph = catalogue::build("mlp", [1, 4, 4], classes, 0.0625).expect("in the catalogue");
    let layout = layout::of(&graph);
    (graph, layout)
}

/// A file for the small model of so many classes, each tensor filled with its number.
pub(super) fn file_for(classes: usize, prefix: &str) -> Vec<Written> {
    let (_, layout) = model(classes);
    let tensors = layout.tensors.iter().enumerate().map(|(at, tensor)| {
        let name: &'static str = format!("{prefix}{}", tensor.name).leak();
        let body = f32s(&vec![at as f32 + 0.5; tensor.elements()]);
        (name, "Float", tensor.shape.clone(), body)
    });
    tensors.collect()
}

pub(super) fn fitted(bytes: &[u8], classes: usize) -> Result<Fitted, String> {
    let (graph, layout) = model(classes);
    let file = open(bytes).map_err(|error| error.to_string())?;
    fit(&file, &graph, &layout, ANSWERS).map_err(|error| error.to_string())
}

#[test]
fn what_torch_saves_is_read() {
    let plain = fitted(&saved(&file_for(10, "")), 10).expect("fits");
    let (_, layout) = model(10);
    assert_eq!(plain.remarks, [""; 0]);
    for (at, tensor) in layout.tensors.iter().enumerate() {
        assert!(plain.parameters[tensor.range()].iter().all(|value| *value == at as f32 + 0.5));
    }
    let wrapped = fitted(&saved(&file_for(10, "module._orig_mod.")), 10).expect("fits");
    assert_eq!(wrapped.parameters, plain.parameters);
    assert_eq!(wrapped.remarks, ["every name begins with `module._orig_mod.`: taken off"]);
    // A whole checkpoint of a program: its weights lie within it.
    let tensors = file_for(10, "");
    let entries: Vec<(&str, Vec<u8>)> = tensors
        .iter()
        .enumerate()
        .map(|(at, t)| (t.0, rebuilt(t.1, &at.to_string(), &t.2, t.2.iter().product())))
        .collect();
    let mut inner = entries.clone();
    inner.push(("epoch", b"K\x07".to_vec()));
    let outer = [("epoch", b"K\x07".to_vec()), ("state_dict", dictionary(&inner))];
    let found = fitted(&with_storages(&pickle(&dictionary(&outer)), &tensors), 10).expect("fits");
    assert_eq!(found.parameters, plain.parameters);
    assert_eq!(found.remarks, ["epoch is no tensor: passed over"]);
}

#[test]
fn what_a_tensor_is_besides_its_numbers_is_applied_or_refused() {
    let stored = [("a", "Float", vec![2], f32s(&[1.5, -2.0]))];
    let values = |value: Vec<u8>| {
        let file = with_storages(&pickle(&dictionary(&[("a", value)])), &stored);
        let file = open(&file).map_err(|error| error.to_string())?;
        let mut values = [0.0; 2];
        file.tensors[0].read(&mut values).expect("two fractions");
        Ok::<_, String>(values)
    };
    let made = |more: &[Vec<u8>]| rebuilt_with(more, ("Float", "0"), &[2], 2);
    let says = |key: &str, value: &[u8]| [&b"}"[..], &text(key), value, b"s"].concat();
    let parameter = |of: Vec<u8>| {
        let arguments = tuple(&[of, b"\x88".to_vec(), b"ccollections\nOrderedDict\n)R".to_vec()]);
        [&b"ctorch._utils\n_rebuild_parameter\n"[..], &arguments, b"R"].concat()
    };
    for (value, expected) in [
        (made(&[]), [1.5, -2.0]),
        (made(&[b"}".to_vec()]), [1.5, -2.0]),
        (made(&[says("neg", b"\x88")]), [-1.5, 2.0]),
        (made(&[says("neg", b"\x89")]), [1.5, -2.0]),
        (made(&[says("conj", b"\x89")]), [1.5, -2.0]),
        (parameter(made(&[])), [1.5, -2.0]),
        (parameter(made(&[says("neg", b"\x88")])), [-1.5, 2.0]),
    ] {
        assert_eq!(values(value), Ok(expected));
    }
    for (value, expected) in [
        (made(&[says("conj", b"\x88")]), "is kept conjugated"),
        (made(&[says("scale", b"K\x02")]), "its metadata say scale"),
        (made(&[says("neg", b"K\x02")]), "its metadata say neg"),
        (made(&[b"}K\x01K\x01s".to_vec()]), "a key that is no text"),
        (made(&[b"N".to_vec()]), "its metadata are no dictionary"),
        (made(&[b"}".to_vec(), b"N".to_vec()]), "with 8 arguments, and 7 are known"),
        ([made(&[]), b"}b".to_vec()].concat(), "is changed after it was made"),
        ([made(&[]), b"(K\x00K\x01u".to_vec()].concat(), "is changed after it was made"),
        ([parameter(made(&[])), b"}b".to_vec()].concat(), "is changed after it was made"),
        (parameter([made(&[]), b"}b".to_vec()].concat()), "is changed after it was made"),
    ] {
        let said = values(value).expect_err(expected);
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.starts_with("tensor \"a\": ") && said.contains("resolve_neg()"), "{said}");
    }
}

#[test]
fn other_elements_become_f32_and_counters_do_not_matter() {
    let mut tensors = file_for(10, "");
    let shape = tensors[0].2.clone();
    let count: usize = shape.iter().product();
    for (word, one, shown) in [
        ("Half", 0x3E00u16.to_le_bytes().to_vec(), "f16"),
        ("BFloat16", 0x3FC0u16.to_le_bytes().to_vec(), "bf16"),
        ("Double", 1.5f64.to_le_bytes().to_vec(), "f64"),
    ] {
        tensors[0] = (tensors[0].0, word, shape.clone(), one.repeat(count));
        let found = fitted(&saved(&tensors), 10).expect("fits");
        assert!(found.parameters[..count].iter().all(|value| *value == 1.5), "{shown}");
        assert_eq!(found.remarks, [format!("a tensor of {shown}: converted to f32")]);
    }
    tensors[0] = (tensors[0].0, "Long", shape, 1i64.to_le_bytes().repeat(count));
    let text = fitted(&saved(&tensors), 10).expect_err("whole numbers");
    assert!(text.contains("has elements of Long; weights are f32, f16, bf16 or f64"), "{text}");
    let mut counted = file_for(10, "");
    counted.push(("bn.num_batches_tracked", "Long", vec![], 9i64.to_le_bytes().to_vec()));
    assert_eq!(fitted(&saved(&counted), 10).expect("fits").remarks, [""; 0]);
}

#[test]
fn a_last_layer_for_other_classes_begins_anew_and_is_named() {
    let found = fitted(&saved(&file_for(1000, "")), 4).expect("fits");
    assert_eq!(
        found.remarks,
        ["it is for 1000 classes, this model for 4: fc3.weight, fc3.bias begin anew, with first \
          weights of seed 3"]
    );
    let (graph, layout) = model(4);
    let first = crate::model::init::parameters(&graph, &layout, 3);
    let (body, head) = layout.tensors.split_at(layout.tensors.len() - 2);
    assert!(head.iter().all(|t| found.parameters[t.range()] == first[t.range()]));
    assert!(body.iter().all(|t| found.parameters[t.range()] != first[t.range()]));
}

#[test]
fn what_does_not_fit_is_listed_whole_and_nothing_is_loaded() {
    let mut tensors = file_for(1000, "");
    tensors[0] = ("fc1.weight", "Float", vec![2, 2], f32s(&[0.0; 4]));
    tensors[1].0 = "fc1.offset";
    tensors.push(("extra", "Float", vec![1], f32s(&[0.0])));
    let text = fitted(&saved(&tensors), 4).expect_err("differs");
    for expected in [
        "1 tensors are missing: fc1.bias; ",
        "2 tensors are of no layer of the model: extra, fc1.offset; ",
        "3 tensors are of another shape: fc1.weight (shape [2, 2], the model needs [",
        "fc3.weight (shape [1000, ",
        "fc3.bias (shape [1000], the model needs [4])",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn old_names_of_densenets_are_todays() {
    let names: BTreeSet<&str> = BTreeSet::from(["a.denselayer1.norm1.weight", "norm.1.weight"]);
    let today = |name| names::today(name, &names);
    assert_eq!(today("a.denselayer1.norm.1.weight"), "a.denselayer1.norm1.weight");
    assert_eq!(today("norm.1.weight"), "norm.1.weight");
    assert_eq!(today("b.norm.1.weight"), "b.norm.1.weight");
}

#[test]
fn a_pickle_that_names_a_function_is_refused_and_nothing_runs() {
    let marker = std::env::temp_dir().join(format!("torch-{}", std::process::id()));
    let command = text(&format!("touch {}", marker.to_string_lossy().into_owned()));
    let call = [&b"cos\nsystem\n("[..], &command, b"tR"].concat();
    // As a value, as a key, as what a tensor is rebuilt with, or merely named and dropped.
    for body in [
        dictionary(&[("a", call.clone())]),
        [&b"ccollections\nOrderedDict\n)R("[..], &call, b"Nu"].concat(),
        [&b"cos\nsystem\nq\x00}"[..], &text("w"), b"K\x01s"].concat(),
    ] {
        let said = refusal(&archive(&[("w/data.pkl", &pickle(&body))]));
        assert!(said.contains("it asks for os.system, which no weights need"), "{said}");
    }
    assert!(!marker.exists());
    // A whole model is a program too.
    let module = b"ctorchvision.models.resnet\nResNet\n)\x81";
    let said = refusal(&archive(&[("w/data.pkl", &pickle(module))]));
    assert!(said.contains("it asks for torchvision.models.resnet.ResNet, which"), "{said}");
}

#[test]
fn a_damaged_pickle_is_an_error_or_other_data() {
    let tensors = &file_for(10, "")[..2];
    let entries: Vec<(&str, Vec<u8>)> = tensors
        .iter()
        .enumerate()
        .map(|(at, t)| (t.0, rebuilt(t.1, &at.to_string(), &t.2, t.2.iter().product())))
        .collect();
    let whole = pickle(&dictionary(&entries));
    let (graph, layout) = model(10);
    for at in 0..whole.len() {
        for byte in [0, 1, b'h', b't', b'R', 0x7F, 0x80, 0xFF] {
            let mut body = whole.clone();
            body[at] = byte;
            let file = with_storages(&body, tensors);
            if let Ok(file) = open(&file) {
                assert!(fit(&file, &graph, &layout, ANSWERS).is_err(), "four tensors are missing");
            }
        }
    }
}

#[test]
fn pickles_that_ask_for_much_are_refused() {
    let of = |body: &[u8]| refusal(&archive(&[("w/data.pkl", &pickle(body))]));
    let many = b"N".repeat((1 << 20) + 8);
    assert!(of(&many).contains("more than 1048576 values"), "{}", of(&many));
    let long = b"N".repeat((4 << 20) + 8);
    assert!(of(&long).contains("at most 4194304"), "{}", of(&long));
    // Lists within lists, as deep as the file is long, and one that holds itself.
    let deep = [&b"]".repeat(100_000)[..], &b"a".repeat(99_999)].concat();
    assert!(of(&deep).contains("no dictionary of tensors"), "{}", of(&deep));
    let itself = b"}q\x00X\x05\0\0\0modelh\x00s";
    assert!(of(itself).contains("no dictionary of tensors"), "{}", of(itself));
    // Tensors that say more than there is.
    let one = |shape: &[usize], elements: usize| {
        let data = pickle(&dictionary(&[("a", rebuilt("Float", "0", shape, elements))]));
        with_storages(&data, &[("a", "Float", vec![1], f32s(&[1.0]))])
    };
    for (shape, elements, expected) in [
        (&[1 << 40][..], 1, "reaches beyond its storage of 4 bytes"),
        (&[1], 1 << 40, "has 4 bytes, and says 1099511627776 elements"),
        (&[1; 9], 1, "has 9 dimensions, at most 8"),
        (&[1 << 32, 1 << 32, 0], 1, ""),
    ] {
        let bytes = one(shape, elements);
        let found = open(&bytes).map_err(|error| error.to_string());
        match expected {
            "" => assert!(found.is_ok(), "no element is nowhere"),
            _ => assert!(found.expect_err("refused").contains(expected), "{expected}"),
        }
    }
    let data = pickle(&dictionary(&[("a", rebuilt("Float", "../../etc/passwd", &[1], 1))]));
    let said = refusal(&with_storages(&data, &[]));
    assert!(said.contains("data/../../etc/passwd is missing"), "{said}");
}

#[test]
fn archives_that_lie_are_refused() {
    let good = saved(&file_for(10, ""));
    let end = good.len() - 22;
    let directory = u32::from_le_bytes(good[end + 16..end + 20].try_into().expect("four")) as usize;
    let edit = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        refusal(&file)
    };
    for (at, bytes, expected) in [
        (directory + 10, &[8u8, 0][..], "is compressed (method 8)"),
        (directory + 8, &[1, 0], "is encrypted"),
        // A bomb: little in the file, much when unpacked.
        (directory + 24, &[0xFF, 0xFF, 0xFF, 0x7F], "bytes and says 2147483647"),
        (directory + 20, &[0xFF, 0xFF, 0xFF, 0x7F], "has 2147483647 bytes and says"),
        (directory + 24, &[0xFF; 4], "longer than 32 bits say"),
        (directory + 42, &[0xFF, 0xFF, 0xFF, 0x7F], "lies outside of the file"),
        (directory + 16, &[1, 2, 3, 4], "is damaged: the checksum differs"),
        (end + 10, &[0xFE, 0xFF], "names more entries than it holds"),
        (end + 12, &[0xFF, 0xFF, 0xFF, 0x7F], "its directory lies outside of the file"),
        (end + 4, &[1, 0], "several disks"),
        (end, &[0], "its end is not there"),
    ] {
        let said = edit(at, bytes);
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // The second entry of the directory leads to the first one's bytes.
    let second = directory + 46 + "w/data.pkl".len();
    let mut shared = good.clone();
    let first: [u8; 16] = good[directory + 16..directory + 32].try_into().expect("sixteen");
    shared[second + 16..second + 28].copy_from_slice(&first[..12]);
    shared[second + 42..second + 46].fill(0);
    let said = refusal(&shared);
    assert!(said.contains("share bytes"), "{said}");
    assert!(refusal(&archive(&[("a", b"b")])).contains("without data.pkl"));
    assert!(
        refusal(&archive(&[("w/data.pkl", b"\x80\x02N."), ("w/byteorder", b"big")]))
            .contains("big-endian")
    );
    assert!(refusal(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").contains("before PyTorch 1.6"));
    // Cut anywhere, or with any byte of the directory changed: never a panic.
    for length in 0..good.len() {
        assert!(open(&good[..length]).is_err(), "{length}");
    }
    for at in (0..200).chain(directory..good.len()) {
        for byte in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut file = good.clone();
            file[at] = byte;
            drop(open(&file));
        }
    }
}

/// A safetensors file with this header.
fn headed(length: u64, header: &str, values: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes()[..], header.as_bytes(), values].concat()
}

#[test]
fn safetensors_headers_that_lie_are_refused() {
    let entry = |name: &str, kind: &str, shape: &str, from: u64, to: u64| {
        format!(
            "\"{name}\":{{\"dtype\":\"{kind}\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}"
        )
    };
    let file = |entries: &[String], values: usize| {
        let header = format!("{{{}}}", entries.join(","));
        headed(header.len() as u64, &header, &vec![0; values])
    };
    let huge = headed(1 << 60, "{}", &[]);
    assert!(refusal(&huge).contains("a header of 1152921504606846976 bytes"), "{}", refusal(&huge));
    let f32s = |name: &str, from: u64, to: u64| entry(name, "F32", "[1]", from, to);
    for (bytes, about) in [
        (headed(100, "{}", &[]), "longer than the file"),
        (file(&[f32s("a", 0, 4), f32s("b", 2, 6)], 6), "overlapping"),
        (file(&[f32s("a", 8, 12)], 4), "out of range"),
        (file(&[f32s("a", 4, 0)], 4), "backwards"),
        (file(&[entry("a", "F32", "[4611686018427387904,4]", 0, 4)], 4), "a product that wraps"),
        (file(&[entry("a", "F32", "[1]", 0, u64::MAX)], 4), "endless"),
        (file(&[f32s("a", 0, 4)], 400), "more bytes than are named"),
        (file(&[entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4)], 4), "many dimensions"),
        (b"".to_vec(), "empty"),
        (b"hello, world".to_vec(), "text"),
    ] {
        let said = refusal(&bytes);
        assert!(said.contains("safetensors") || said.contains("dimensions"), "{about}: {said}");
    }
    // A number of eight letters tells nobody anything.
    for other in [&b"hello, world"[..], b"<html>not found</html>", b"", b"\x08"] {
        let said = refusal(other);
        assert!(said.contains("no file of weights") && !said.contains("bytes"), "{said}");
    }
    for length in [0x80, 0x0280] {
        let header = format!("{:length$}", format!("{{{}}}", f32s("a", 0, 4)));
        assert!(open(&headed(length as u64, &header, &[0; 4])).is_ok(), "no pickle: {length}");
    }
    let halves = file(&[entry("a", "F16", "[2]", 0, 4)], 4);
    assert!(open(&halves).is_ok());
}
