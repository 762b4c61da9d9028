//! Convolutions whose channels have a window each, of every kind that a card has kernels for.

use super::around;

/// `before` channels, then these.
fn depthwise(channels: usize, before: &str, keys: &str, input: [usize; 3], seed: u64) {
    let middle = format!(
        "{before}[[layer]]\nkind = \"conv\"\nchannels = {channels}\ngroups = {channels}\n{keys}"
    );
    around(&middle, input, seed);
}

#[test]
fn depthwise_convolutions_of_every_window_agree() {
    for (seed, keys) in [
        "kernel = 1",
        "kernel = 1\nstride = 2\nbias = false",
        "kernel = 2\npadding = [0, 1, 1, 0]",
        "kernel = 3\npadding = 1",
        "kernel = 3\npadding = 1\nstride = 2\nbias = false",
        "kernel = 3\nstride = 2\npadding = [0, 0, 1, 1]",
        "kernel = 3\npadding = 3\nstride = 2",
        "kernel = 3\nstride = 3\npadding = 1",
        "kernel = 3\npadding = 2\ndilation = 2",
        "kernel = [2, 3]\nstride = [3, 1]\npadding = [1, 4]",
        "kernel = 4\npadding = [2, 1, 1, 2]\nbias = false",
        "kernel = 5\npadding = 2",
        "kernel = 5\npadding = 2\nstride = 2",
        "kernel = 5\npadding = [1, 0]\nstride = [1, 2]\nbias = false",
        "kernel = 6\npadding = 2\nstride = [2, 4]",
        "kernel = 7\npadding = 3",
        "kernel = 7\npadding = 3\nstride = 2\nbias = false",
        "kernel = [1, 7]\npadding = [0, 3]",
        "kernel = [7, 1]\npadding = [3, 0]\nstride = [2, 1]",
        "kernel = [3, 5]\npadding = [2, 4]\ndilation = [1, 2]\nstride = [1, 2]",
        // Too wide, and too large.
        "kernel = [2, 8]\npadding = [1, 4]",
        "kernel = [9, 6]\npadding = [4, 3]",
    ]
    .into_iter()
    .enumerate()
    {
        depthwise(6, "", keys, [3, 9, 10], seed as u64);
    }
}

/// More groups of lanes than a block has, and chunks of sums.
#[test]
fn depthwise_convolutions_of_many_channels_and_pixels_agree() {
    for (channels, keys, size) in [
        (20, "kernel = 3\npadding = 1", [33, 29]),
        (72, "kernel = 3\npadding = 1\nbias = false", [24, 16]),
        (67, "kernel = 5\npadding = 2\nstride = 2", [11, 15]),
        (132, "kernel = [7, 4]\npadding = [3, 1]", [5, 6]),
    ] {
        let before = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\nbias = false\n"
        );
        depthwise(channels, &before, keys, [3, size[0], size[1]], channels as u64);
    }
}
