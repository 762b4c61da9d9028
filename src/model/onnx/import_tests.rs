//! What is imported, and what is refused by name.

use super::*;
use crate::model::LayerKind;
use crate::model::catalogue;
use crate::model::init;
use crate::model::onnx::export::{Trained, export};
use crate::model::onnx::proto::{FLOAT, FLOAT16, INT32, INT64};
use crate::model::onnx::stored::FilePart;
use crate::observe::protobuf::Message;

fn nothing(_: FilePart<'_>) -> Result<Vec<u8>, String> {
    Err("no file".into())
}

fn read(file: &[u8]) -> Result<Imported, OnnxError> {
    import("model", file, None, &nothing)
}

/// A catalogue model with drawn weights, as a file.
fn written(name: &str, side: usize) -> (Graph, Layout, Vec<f32>, Vec<u8>) {
    let graph = catalogue::build(name, [3, side, side], 5, 1.0).expect("known");
    let layout = layout::of(&graph);
    let parameters = init::parameters(&graph, &layout, 1);
    let statistics = init::statistics(&layout);
    let classes: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
    let (parameters_of, statistics_of) = (&parameters, &statistics);
    let trained = Trained {
        graph: &graph,
        layout: &layout,
        parameters: parameters_of,
        statistics: statistics_of,
        classes: &classes,
        about: &[],
    };
    let file = export(&trained).expect("has operators");
    (graph, layout, parameters, file)
}

#[test]
fn what_is_exported_is_imported() {
    for name in ["resnet20", "mobilenet_v2"] {
        let (graph, layout, parameters, file) = written(name, 32);
        let imported = read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((imported.folded, imported.copied), (0, 0), "{name}");
        assert_eq!(imported.parameters, parameters, "{name}");
        let names = |layout: &Layout| {
            layout.tensors.iter().map(|t| (t.name.clone(), t.shape.clone())).collect::<Vec<_>>()
        };
        assert_eq!(names(&imported.layout), names(&layout), "{name}");
        let without_dropout = |graph: &Graph| {
            let kept = graph.nodes.iter().map(|node| node.kind.clone());
            let left =
                |kind: &LayerKind| !matches!(kind, LayerKind::Dropout { .. } | LayerKind::Flatten);
            kept.filter(left).collect::<Vec<_>>()
        };
        let plain = |kinds: Vec<LayerKind>| {
            let kind = |kind| match kind {
                LayerKind::BatchNorm { epsilon, .. } => {
                    LayerKind::BatchNorm { epsilon, momentum: 0.1 }
                }
                kind => kind,
            };
            kinds.into_iter().map(kind).collect::<Vec<_>>()
        };
        assert_eq!(plain(without_dropout(&imported.graph)), plain(without_dropout(&graph)));
    }
}

#[test]
fn every_layer_of_the_catalogue_has_operators() {
    // The others differ from these in depth and width alone.
    for name in ["squeezenet1_1", "densenet121", "googlenet", "cnn11", "mlp"] {
        let graph = catalogue::build(name, [3, 40, 40], 2, 1.0).expect("known");
        let layout = layout::of(&graph);
        let zeros = vec![0.0; layout.parameters.max(layout.statistics)];
        let (parameters, statistics) = (&zeros[..layout.parameters], &zeros[..layout.statistics]);
        let classes = ["a".to_owned(), "b".to_owned()];
        let (graph, layout, classes, about) = (&graph, &layout, &classes, &[]);
        let trained = Trained { graph, layout, parameters, statistics, classes, about };
        let file = export(&trained).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(Model::read(&file).expect("is whole").nodes.len() > 5, "{name}");
    }
}

#[test]
fn what_a_file_of_our_own_says_of_its_model_comes_back() {
    let (_, _, _, file) = written("resnet20", 32);
    let imported = read(&file).expect("our own");
    let classes = imported.about.get("classes").expect("told");
    let classes: Vec<String> = serde_json::from_str(classes).expect("a list");
    assert_eq!(classes.len(), imported.graph.classes);
    let name = file.windows(10).position(|at| at == b"\x12\x08kintsugi").expect("its producer");
    let mut others = file;
    others[name + 2] = b'x';
    assert!(read(&others).expect("reads").about.is_empty(), "who else may mean other things");
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let (_, _, parameters, file) = written("resnet20", 32);
    for cut in (0..file.len()).step_by(4999).chain(file.len() - 120..file.len()) {
        // Behind the graph a cut between two fields leaves a whole model.
        if let Ok(imported) = read(&file[..cut]) {
            assert!(cut > 4 * parameters.len(), "{cut} of {}", file.len());
            assert_eq!(imported.parameters, parameters, "{cut} of {}", file.len());
        }
    }
}

fn end(name: &str, dims: &[i64]) -> Message {
    let shape = dims.iter().fold(Message::default(), |shape, &dim| {
        shape.within(1, &Message::default().integer(1, dim))
    });
    let tensor = Message::default().integer(1, FLOAT).within(2, &shape);
    Message::default().text(1, name).within(2, &Message::default().within(1, &tensor))
}

fn node(op: &str, inputs: &[&str], output: &str) -> Message {
    let node = inputs.iter().fold(Message::default(), |node, input| node.text(1, input));
    node.text(2, output).text(3, output).text(4, op)
}

fn model(nodes: &[Message], tensors: &[Message]) -> Vec<u8> {
    let graph = nodes.iter().fold(Message::default(), |graph, node| graph.within(1, node));
    let graph = tensors.iter().fold(graph, |graph, tensor| graph.within(5, tensor));
    let graph = graph.within(11, &end("x", &[1, 2, 4, 4])).within(12, &end("y", &[1, 2]));
    let opset = Message::default().integer(2, 17);
    Message::default().within(7, &graph).within(8, &opset).0
}

fn tensor(name: &str, dims: &[i64], raw: &[u8]) -> Message {
    let tensor = dims.iter().fold(Message::default(), |tensor, &dim| tensor.integer(1, dim));
    tensor.integer(2, FLOAT).text(8, name).bytes(9, raw)
}

/// `[2, 2]`.
fn weight() -> Message {
    tensor("w.weight", &[2, 2], &[0; 16])
}

#[test]
fn a_small_graph_is_read() {
    let nodes = [
        node("GlobalAveragePool", &["x"], "p"),
        node("Flatten", &["p"], "f"),
        node("MatMul", &["f", "w.weight"], "m"),
        node("Add", &["m", "b"], "y"),
    ];
    let raw: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors = [tensor("w.weight", &[2, 2], &raw), tensor("b", &[2], &raw[..8])];
    let imported = read(&model(&nodes, &tensors)).expect("is right");
    let names: Vec<&str> = imported.graph.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["global_avg_pool", "w"]);
    assert_eq!(imported.parameters, [1.0, 3.0, 2.0, 4.0, 1.0, 2.0]);
}

#[test]
fn norms_that_an_exporter_has_merged_are_copied() {
    let ones = tensor("n.weight", &[2], &[0, 0, 128, 63, 0, 0, 128, 63]);
    let norm = |input: &str, output: &str| {
        node("BatchNormalization", &[input, "n.weight", "n.weight", "n.weight", "n.weight"], output)
    };
    let nodes = [node("GlobalAveragePool", &["x"], "p"), norm("p", "a"), norm("a", "b")];
    let nodes = [&nodes[..], &[node("Flatten", &["b"], "y")]].concat();
    let imported = read(&model(&nodes, &[ones])).expect("is right");
    assert_eq!((imported.copied, imported.parameters), (7, vec![1.0; 8]));
    let names: Vec<&str> = imported.graph.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["global_avg_pool", "n", "n_2", "flatten"]);
    let below = tensor("n.weight", &[2], &[0, 0, 128, 63, 0, 0, 128, 191]);
    refused(&model(&nodes, &[below]), "n.running_var: it holds a variance below 0");
}

#[test]
fn a_norm_whose_momentum_is_none_gets_the_usual_one_and_it_is_counted() {
    let ones = tensor("w", &[2], &[0, 0, 128, 63, 0, 0, 128, 63]);
    for (kept, expected) in [(0.0, (0.1, 1)), (1.0, (0.1, 1)), (0.75, (0.25, 0))] {
        let kept = Message::default().text(1, "momentum").float(2, kept).integer(20, 1);
        let norm = node("BatchNormalization", &["x", "w", "w", "w", "w"], "n").within(5, &kept);
        let nodes = [norm, node("GlobalAveragePool", &["n"], "p"), node("Flatten", &["p"], "y")];
        let imported = read(&model(&nodes, std::slice::from_ref(&ones))).expect("is right");
        let momentum = imported.graph.nodes.iter().find_map(|node| match node.kind {
            LayerKind::BatchNorm { momentum, .. } => Some(momentum),
            _ => None,
        });
        assert_eq!((momentum, imported.without_momentum), (Some(expected.0), expected.1));
    }
}

fn softmax(input: &str, output: &str, axis: i64) -> Message {
    node("Softmax", &[input], output).within(5, &integer("axis", axis))
}

fn integer(name: &str, value: i64) -> Message {
    Message::default().text(1, name).integer(3, value).integer(20, 2)
}

#[test]
fn a_softmax_over_channels_is_a_layer_and_over_the_classes_at_the_end_is_none() {
    let nodes = [
        softmax("x", "s", 1),
        node("Mul", &["x", "s"], "m"),
        node("GlobalAveragePool", &["m"], "p"),
        softmax("p", "q", -3),
        node("Flatten", &["q"], "f"),
        softmax("f", "y", -1),
    ];
    let imported = read(&model(&nodes, &[])).expect("is right");
    let names: Vec<&str> = imported.graph.nodes.iter().map(|node| node.kind.name()).collect();
    assert_eq!(names, ["softmax", "multiply", "global_avg_pool", "softmax", "flatten"]);
    for axis in [0, 2, 3, -1, 4] {
        let nodes = [softmax("x", "s", axis), node("GlobalAveragePool", &["s"], "p")];
        let nodes = [&nodes[..], &[node("Flatten", &["p"], "y")]].concat();
        let message = format!("axis = {axis} of [1, 2, 4, 4]: over channels (1)");
        refused(&model(&nodes, &[]), &message);
    }
    let inner = [node("LogSoftmax", &["x"], "s"), node("GlobalAveragePool", &["s"], "y")];
    refused(&model(&inner, &[]), "(LogSoftmax): axis = -1");
}

fn numbers(name: &str, values: &[i64]) -> Message {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let length = Message::default().integer(1, values.len() as i64);
    length.integer(2, INT64).text(8, name).bytes(9, &raw)
}

/// A convolution to two classes behind this node, and a pooling.
fn convolved(before: Message, tensors: &[Message]) -> Vec<u8> {
    let weight = tensor("w.weight", &[2, 2, 3, 3], &[0; 144]);
    let conv = node("Conv", &["a", "w.weight"], "c");
    let nodes = [before, conv, node("GlobalAveragePool", &["c"], "p")];
    let nodes = [&nodes[..], &[node("Flatten", &["p"], "y")]].concat();
    model(&nodes, &[tensors, &[weight]].concat())
}

#[test]
fn zeros_around_are_the_padding_of_the_convolution_that_follows() {
    let pads = |values: &[i64]| numbers("pads", values);
    let pad = || node("Pad", &["x", "pads"], "a");
    let read_padding = |values: &[i64]| {
        let imported = read(&convolved(pad(), &[pads(values)])).expect("is right");
        let LayerKind::Conv(conv) = imported.graph.nodes[0].kind else { panic!("no convolution") };
        conv.padding.sides()
    };
    assert_eq!(read_padding(&[0, 0, 0, 1, 0, 0, 2, 1]), [0, 1, 2, 1]);
    assert_eq!(read_padding(&[0; 8]), [0; 4]);
    for (values, message) in [
        (&[0, 1, 0, 0, 0, 0, 0, 0][..], "around height and width"),
        (&[1, 1], "around height and width"),
        (&[0, 0, -1, 0, 0, 0, 0, 0], "-1 is no size"),
        (&[0, 0, 0, 0, 0, 0, 1 << 30, 0], "padding 1073741824 below"),
    ] {
        refused(&convolved(pad(), &[pads(values)]), message);
    }
    let nodes = [pad(), node("GlobalAveragePool", &["a"], "p"), node("Flatten", &["p"], "y")];
    let around = pads(&[0, 0, 1, 1, 0, 0, 1, 1]);
    refused(&model(&nodes, &[around]), "zeros around the result of a layer");
}

#[test]
fn windows_that_reach_over_the_end_come_back_from_how_they_are_written() {
    let sizes = |name: &str, values: &[i64]| {
        let attribute = Message::default().text(1, name).integer(20, 7);
        values.iter().fold(attribute, |attribute, &value| attribute.integer(8, value))
    };
    let pooled = |op: &str, pads: &[i64]| {
        let pool = node(op, &["x"], "a").within(5, &sizes("kernel_shape", &[3, 3]));
        let pool = pool.within(5, &sizes("strides", &[2, 2])).within(5, &sizes("pads", pads));
        let tail = [node("GlobalAveragePool", &["a"], "p"), node("Flatten", &["p"], "y")];
        model(&[&[pool], &tail[..]].concat(), &[])
    };
    let imported = read(&pooled("MaxPool", &[1, 1, 2, 2])).expect("is right");
    assert_eq!(imported.graph.nodes[0].shape, [2, 3, 3]);
    let LayerKind::MaxPool(pool) = imported.graph.nodes[0].kind else { panic!("no pooling") };
    assert!(pool.ceil_mode && pool.padding.sides() == [1; 4], "{pool:?}");
    let imported = read(&pooled("AveragePool", &[1, 1, 2, 2])).expect("is right");
    let LayerKind::AvgPool(pool) = imported.graph.nodes[0].kind else { panic!("no pooling") };
    assert!(pool.ceil_mode && !pool.count_include_pad, "{pool:?}");
    // One window more than reaches over: it would have nothing in it.
    refused(&pooled("MaxPool", &[1, 1, 4, 2]), "padding 4 is more than half of kernel 3");
}

#[test]
fn a_slice_of_the_whole_is_nothing_and_a_part_is_refused() {
    let slice = node("Slice", &["x", "from", "to", "axes"], "a");
    let sliced = |from: &[i64], to: &[i64], axes: &[i64]| {
        let row = [numbers("from", from), numbers("to", to), numbers("axes", axes)];
        convolved(slice.clone(), &row)
    };
    read(&sliced(&[0, 0], &[i64::MAX, 4], &[1, -1])).expect("is the whole");
    for (from, to, axes) in [
        (&[0][..], &[3][..], &[2][..]),
        (&[1], &[i64::MAX], &[1]),
        (&[0], &[i64::MAX], &[4]),
        (&[0], &[-1], &[1]),
        (&[0, 0], &[4], &[2, 3]),
    ] {
        refused(&sliced(from, to, axes), "no layer here takes a part");
    }
}

#[test]
fn a_tensor_or_a_result_that_is_cut_to_whole_numbers_is_refused() {
    let cast =
        |from: &str, to: &str, kind| node("Cast", &[from], to).within(5, &integer("to", kind));
    let averaged = |tail: &[Message], held: &[Message]| {
        let nodes = [pool(), node("Flatten", &["p"], "f")];
        model(&[&nodes[..], tail].concat(), held)
    };
    let product = || node("MatMul", &["f", "v"], "y");
    let whole = [cast("w.weight", "u", INT32), cast("u", "v", FLOAT), product()];
    refused(&averaged(&whole, &[weight()]), "to = 6");
    let fractions = [cast("w.weight", "u", FLOAT16), cast("u", "v", FLOAT), product()];
    read(&averaged(&fractions, &[weight()])).expect("stays a fraction");
    let like = |of: &str| [node("CastLike", &["w.weight", of], "v"), product()];
    refused(&averaged(&like("k"), &[weight(), numbers("k", &[1])]), "as ");
    read(&averaged(&like("f"), &[weight()])).expect("as a layer's result");
}

fn pool() -> Message {
    node("GlobalAveragePool", &["x"], "p")
}

/// A pooling, and a matrix of two rows.
fn product(tensors: &[Message]) -> Vec<u8> {
    let nodes = [pool(), node("Flatten", &["p"], "f"), node("MatMul", &["f", "w.weight"], "y")];
    model(&nodes, tensors)
}

fn refused(file: &[u8], message: &str) {
    let error = read(file).expect_err(message).to_string();
    assert!(error.contains(message), "{message}: {error}");
}

#[test]
fn malicious_graphs_are_refused_by_name() {
    let relu = |input: &str, output: &str| node("Relu", &[input], output);
    let twice = [
        pool(),
        node("Flatten", &["p"], "f"),
        node("MatMul", &["f", "w.weight"], "g"),
        node("MatMul", &["g", "w.weight"], "y"),
    ];
    for (nodes, message) in [
        (vec![relu("y", "a"), relu("a", "y")], "the graph has a loop"),
        (vec![relu("y", "y")], "the graph has a loop"),
        (vec![pool(), relu("q", "y")], "is made by no node"),
        (vec![relu("x", "y"), relu("x", "y")], "is made twice"),
        (vec![relu("x", "x")], "is made twice"),
        (vec![node("Gelu", &["x"], "y")], "node y (Gelu): this operator has no layer"),
        (vec![node("Loop", &["x"], "y")], "node y (Loop)"),
        (vec![node("Relu", &[], "y")], "input 0 is not given"),
        (vec![relu("x", "y")], "[N, classes] is taken only"),
        (vec![], "y is made by no node"),
        (vec![relu("x", ""); 1 << 15], "nodes: 16385 are more than the 16384"),
        (vec![node("Concat", &["x"; 300], "y")], "inputs: 257 are more than the 256"),
        (twice.to_vec(), "two layers have it"),
    ] {
        refused(&model(&nodes, &[weight()]), message);
    }
}

#[test]
fn malicious_tensors_are_refused_by_name() {
    let entry = Message::default().text(1, "offset").text(2, "-4");
    let dims = Message::default().integer(1, 2).integer(1, 2).integer(2, FLOAT);
    let outside = dims.text(8, "w.weight").within(13, &entry).integer(14, 1);
    let of = |dims: &[i64], raw: &[u8]| tensor("w.weight", dims, raw);
    for (tensor, message) in [
        (of(&[2, -2], &[0; 16]), "an extent of -2"),
        (of(&[2, 1 << 62], &[0; 16]), "an extent of 4611686018427387904"),
        (of(&[1 << 36, 1 << 36], &[]), "features = 68719476736 is not in"),
        (of(&[2, 1 << 19], &[0; 16]), "16 bytes, but its shape [2, 524288] needs 4194304"),
        (of(&[2, 2], &[0; 12]), "12 bytes, but its shape [2, 2] needs 16"),
        (of(&[2, 2], &[255; 16]), "no finite number"),
        (of(&[2, 2], &[126; 16]), "a weight beyond 2^40"),
        (of(&[3, 2], &[0; 24]), "its layer needs"),
        (of(&[2], &[0; 8]), "a matrix is taken only"),
        (of(&[1; 9], &[0; 4]), "numbers of a row: 9 are more than the 8"),
        (outside, "offset is not a number"),
    ] {
        refused(&product(&[tensor]), message);
    }
    // The layers decide how many classes there are, whatever the output says.
    let three = product(&[of(&[2, 3], &[0; 24])]);
    assert_eq!(read(&three).expect("is whole").graph.classes, 3);
}
