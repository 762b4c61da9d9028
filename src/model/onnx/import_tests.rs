//! What is imported, and what is refused by name.

use super::*;
use crate::model::LayerKind;
use crate::model::catalogue::{self, MODELS};
use crate::model::init;
use crate::model::onnx::export::{Trained, export};
use crate::model::onnx::stored::Part;
use crate::model::onnx::wire::Message;

fn nothing(_: Part<'_>) -> Result<Vec<u8>, String> {
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
    };
    let file = export(&trained).expect("has operators");
    (graph, layout, parameters, file)
}

#[test]
fn what_is_exported_is_imported() {
    for name in ["resnet20", "mobilenet_v2", "resnext50_32x4d"] {
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
fn every_model_of_the_catalogue_has_operators() {
    for entry in MODELS.iter().filter(|entry| !entry.name.starts_with("vgg")) {
        let (_, _, parameters, file) = written(entry.name, entry.side_min.max(32));
        assert!(file.len() > parameters.len(), "{}", entry.name);
    }
}

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let (_, _, _, file) = written("resnet20", 32);
    for cut in (0..file.len()).step_by(997).chain(file.len() - 40..file.len() - 1) {
        // Behind the graph a cut at a field's end leaves a whole model.
        if let Ok(imported) = read(&file[..cut]) {
            panic!("{cut} of {}: {} layers", file.len(), imported.graph.nodes.len());
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
fn malicious_graphs_are_refused_by_name() {
    let pool = || node("GlobalAveragePool", &["x"], "p");
    let flat = || node("Flatten", &["p"], "f");
    let gemm = || node("MatMul", &["f", "w.weight"], "y");
    let many = vec![node("Relu", &["x"], ""); 1 << 15];
    let outside = || {
        let entry = Message::default().text(1, "offset").text(2, "-4");
        Message::default()
            .integer(1, 2)
            .integer(1, 2)
            .integer(2, FLOAT)
            .text(8, "w.weight")
            .within(13, &entry)
            .integer(14, 1)
    };
    let deep = tensor("w.weight", &[1; 9], &[0; 4]);
    for (nodes, tensors, message) in [
        (
            vec![node("Relu", &["y"], "a"), node("Relu", &["a"], "y")],
            vec![],
            "the graph has a loop",
        ),
        (vec![pool(), node("Relu", &["q"], "y")], vec![], "is made by no node"),
        (vec![node("Relu", &["x"], "y"), node("Relu", &["x"], "y")], vec![], "is made twice"),
        (vec![node("Relu", &["x"], "x")], vec![], "is made twice"),
        (vec![node("Gelu", &["x"], "y")], vec![], "node y (Gelu): this operator has no layer"),
        (vec![node("Loop", &["x"], "y")], vec![], "node y (Loop)"),
        (vec![node("Relu", &[], "y")], vec![], "input 0 is not given"),
        (vec![node("Relu", &["x"], "y")], vec![], "[N, classes] is taken only"),
        (vec![], vec![], "y is made by no node"),
        (many, vec![], "nodes: 16385 are more than the 16384"),
        (
            vec![pool(), flat(), gemm()],
            vec![tensor("w.weight", &[2, -2], &[0; 16])],
            "an extent of -2",
        ),
        (
            vec![pool(), flat(), gemm()],
            vec![tensor("w.weight", &[2, 1 << 62], &[0; 16])],
            "an extent of 4611",
        ),
        (
            vec![pool(), flat(), gemm()],
            vec![tensor("w.weight", &[2, 1 << 20], &[0; 16])],
            "elements",
        ),
        (vec![pool(), flat(), gemm()], vec![tensor("w.weight", &[2, 3], &[0; 24])], ""),
        (
            vec![pool(), flat(), gemm()],
            vec![tensor("w.weight", &[2, 2], &[0; 12])],
            "12 bytes, but its shape [2, 2] needs 16",
        ),
        (
            vec![pool(), flat(), gemm()],
            vec![tensor("w.weight", &[2, 2], &[255; 16])],
            "no finite number",
        ),
        (vec![pool(), flat(), gemm()], vec![deep], "numbers of a row: 9"),
        (vec![pool(), flat(), gemm()], vec![outside()], "offset is not a number"),
        (
            vec![
                pool(),
                flat(),
                node("MatMul", &["f", "w.weight"], "g"),
                node("MatMul", &["g", "w.weight"], "y"),
            ],
            vec![weight()],
            "two layers have it",
        ),
    ] {
        let found = read(&model(&nodes, &tensors));
        if message.is_empty() {
            // Another number of classes than the output says: the layers decide.
            assert_eq!(found.expect("is whole").graph.classes, 3);
            continue;
        }
        let error = found.expect_err(message).to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
}
