//! Batch norms: of the micro-batch, and frozen ones.

use super::*;

#[test]
fn batch_norm_agrees_alone_and_with_relu() {
    around("[[layer]]\nkind = \"batch_norm\"", [3, 6, 5], 1);
    around("[[layer]]\nkind = \"batch_norm\"\n[[layer]]\nkind = \"relu\"", [3, 6, 5], 2);
    // After flattening, over features; and with epsilon that matters.
    let flat = "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"batch_norm\"\nepsilon = 0.1";
    around(flat, [2, 3, 3], 3);
}

/// With their running statistics, which stay; everything else is trained.
#[test]
fn frozen_norms_agree_alone_with_relu_and_as_the_lowest_layer() {
    let norm = "[[layer]]\nname = \"norm\"\nkind = \"batch_norm\"\n";
    let conv = "[[layer]]\nkind = \"conv\"\nchannels = 16\nkernel = 3\n";
    let end =
        "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"linear\"\nfeatures = \"classes\"\n";
    let relu = "[[layer]]\nkind = \"relu\"\n";
    for (seed, text) in [
        format!("{conv}{norm}{end}"),
        format!("{conv}{norm}{relu}{end}"),
        format!("{norm}{relu}{conv}{end}"),
        format!("{conv}[[layer]]\nkind = \"batch_norm\"\n{relu}{conv}{norm}{relu}{end}"),
    ]
    .iter()
    .enumerate()
    {
        for whole in [true, false] {
            let graph = from_toml(text, [3, 6, 7], CLASSES).expect("the file is right");
            let mut case = case(graph, 3, seed as u64);
            // Of a norm that is not frozen whole, the batch's.
            let is_frozen = |t: &TensorSpec| match whole {
                true => t.name.starts_with("norm."),
                false => t.name == "norm.bias",
            };
            case.frozen = case.layout.tensors.iter().map(is_frozen).collect();
            check(&case);
        }
    }
}
