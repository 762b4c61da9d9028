//! Whole small networks, and targets that are shares of several classes.

use super::*;

#[test]
fn smoothed_and_mixed_targets_agree_also_of_classifiers_within() {
    let text = "[[layer]]\nname = \"flat\"\nkind = \"flatten\"\n\
                [[layer]]\nname = \"side\"\nkind = \"linear\"\nfeatures = \"classes\"\n\
                loss_weight = 0.4\n\
                [[layer]]\nkind = \"linear\"\nfeatures = \"classes\"\ninputs = [\"flat\"]";
    for (share, smoothing) in [(0.7, 0.1), (0.2, 0.0), (1.0, 0.3)] {
        let graph = from_toml(text, [3, 4, 4], CLASSES).expect("the file is right");
        let soft = Some((vec![3, 1, 0, 0], share, smoothing));
        check(&Case { soft, ..case(graph, 4, 9) });
    }
}

#[test]
fn the_perceptron_agrees() {
    let graph = catalogue::build("mlp", [1, 6, 6], 10, 0.0625).expect("known");
    check(&case(graph, 5, 1));
}

#[test]
fn a_small_cnn11_agrees() {
    let graph = catalogue::build("cnn11", [3, 16, 16], 10, 0.01).expect("known");
    check(&case(graph, 4, 2));
}

#[test]
fn a_tiny_residual_network_agrees() {
    let block = |name: &str, from: &str, stride: usize| {
        format!(
            r#"
            [[layer]]
            name = "{name}.conv1"
            kind = "conv"
            channels = 8
            kernel = 3
            stride = {stride}
            padding = 1
            bias = false
            inputs = ["{from}"]
            [[layer]]
            name = "{name}.bn1"
            kind = "batch_norm"
            [[layer]]
            name = "{name}.relu1"
            kind = "relu"
            [[layer]]
            name = "{name}.conv2"
            kind = "conv"
            channels = 8
            kernel = 3
            padding = 1
            bias = false
            [[layer]]
            name = "{name}.bn2"
            kind = "batch_norm"
            [[layer]]
            name = "{name}.shortcut"
            kind = "conv"
            channels = 8
            kernel = 1
            stride = {stride}
            inputs = ["{from}"]
            [[layer]]
            name = "{name}.add"
            kind = "add"
            inputs = ["{name}.bn2", "{name}.shortcut"]
            [[layer]]
            name = "{name}"
            kind = "relu"
            "#
        )
    };
    let stem = "[[layer]]\nname = \"stem\"\nkind = \"conv\"\nchannels = 8\nkernel = 3\npadding = 1";
    let head = "[[layer]]\nkind = \"global_avg_pool\"\n[[layer]]\nkind = \"flatten\"\n\
                [[layer]]\nkind = \"linear\"\nfeatures = \"classes\"";
    let text = format!("{stem}\n{}\n{}\n{head}", block("one", "stem", 1), block("two", "one", 2));
    let graph = from_toml(&text, [3, 8, 8], CLASSES).expect("the file is right");
    check(&case(graph, 4, 6));
}
