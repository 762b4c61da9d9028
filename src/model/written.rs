//! A graph as a model file: the reverse of `file::from_toml`.

use std::fmt::Write;

use super::window::{AvgPool, Conv, MaxPool, Padding, Pair};
use super::{Graph, LayerKind, Spread};

/// The text of a model file with these layers. The layer that decides the number of classes takes
/// it from the data set, where there is one that alone does.
pub fn to_toml(graph: &Graph) -> String {
    let by_classes = decides_classes(graph);
    let mut text = format!("name = {}\n", quoted(&graph.name));
    if graph.spread == Spread::FanIn {
        text.push_str("spread = \"fan_in\"\n");
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        let mut table = Table { text: String::from("\n[[layer]]\n") };
        table.put("name", &quoted(&node.name));
        table.put("kind", &quoted(node.kind.name()));
        if node.inputs != [at.checked_sub(1)] {
            let name = |input: &Option<usize>| {
                quoted(input.map_or("image", |input| graph.nodes[input].name.as_str()))
            };
            let names: Vec<String> = node.inputs.iter().map(name).collect();
            table.put("inputs", &format!("[{}]", names.join(", ")));
        }
        table.kind(&node.kind, if by_classes == Some(at) { Width::Classes } else { Width::Own });
        if let Some(head) = graph.heads.iter().find(|head| head.node == at) {
            table.put("loss_weight", &number(head.weight));
        }
        text.push_str(&table.text);
    }
    text
}

/// The layer whose width is the number of classes and nothing else.
fn decides_classes(graph: &Graph) -> Option<usize> {
    // A head has that width too, by itself.
    if !graph.heads.is_empty() {
        return None;
    }
    let mut at = graph.nodes.len().checked_sub(1)?;
    // Each turn goes to an earlier layer.
    loop {
        let node = &graph.nodes[at];
        match &node.kind {
            LayerKind::Linear { .. } => return Some(at),
            LayerKind::Conv(conv) if conv.groups == 1 => return Some(at),
            LayerKind::Flatten if node.shape != graph.shape_of(node.inputs[0]) => return None,
            LayerKind::Conv(_)
            | LayerKind::Add
            | LayerKind::Multiply
            | LayerKind::Concat
            | LayerKind::ChannelShuffle { .. } => return None,
            _ => {}
        }
        at = node.inputs[0]?;
        if graph.consumers(at).len() > 1 {
            return None;
        }
    }
}

/// Where a layer's width comes from.
#[derive(Clone, Copy)]
enum Width {
    Own,
    Classes,
}

struct Table {
    text: String,
}

impl Table {
    fn put(&mut self, key: &str, value: &str) {
        // Writing to a string never fails.
        let _ = writeln!(self.text, "{key} = {value}");
    }

    fn pair(&mut self, key: &str, Pair([height, width]): Pair, default: usize) {
        if height == width && height == default {
            return;
        }
        let both =
            if height == width { height.to_string() } else { format!("[{height}, {width}]") };
        self.put(key, &both);
    }

    fn padding(&mut self, padding: Padding) {
        match padding.sides() {
            [top, left, bottom, right] if (top, left) != (bottom, right) => {
                self.put("padding", &format!("[{top}, {left}, {bottom}, {right}]"));
            }
            _ => self.pair("padding", padding.begin, 0),
        }
    }

    fn width(&mut self, key: &str, own: usize, width: Width) {
        let width = match width {
            Width::Own => own.to_string(),
            Width::Classes => quoted("classes"),
        };
        self.put(key, &width);
    }

    fn kind(&mut self, kind: &LayerKind, width: Width) {
        match *kind {
            LayerKind::Conv(conv) => self.conv(&conv, width),
            LayerKind::BatchNorm { epsilon, momentum } => {
                self.put("epsilon", &number(epsilon));
                self.put("momentum", &number(momentum));
            }
            LayerKind::MaxPool(pool) => self.pool(&pool),
            LayerKind::AvgPool(pool) => {
                let AvgPool { count_include_pad, .. } = pool;
                self.pool(&pool.window());
                if !count_include_pad {
                    self.put("count_include_pad", "false");
                }
            }
            LayerKind::AdaptiveAvgPool { size } => self.pair("size", size, 0),
            LayerKind::Linear { features, bias } => {
                self.width("features", features, width);
                if !bias {
                    self.put("bias", "false");
                }
            }
            LayerKind::ChannelShuffle { groups } => self.put("groups", &groups.to_string()),
            LayerKind::Dropout { rate } => self.put("rate", &number(rate)),
            LayerKind::Lrn { size, alpha, beta, k } => {
                self.put("size", &size.to_string());
                self.put("alpha", &number(alpha));
                self.put("beta", &number(beta));
                self.put("k", &number(k));
            }
            LayerKind::Relu
            | LayerKind::Relu6
            | LayerKind::Sigmoid
            | LayerKind::Silu
            | LayerKind::HardSigmoid
            | LayerKind::HardSwish
            | LayerKind::Softmax
            | LayerKind::GlobalAvgPool
            | LayerKind::Add
            | LayerKind::Multiply
            | LayerKind::Concat
            | LayerKind::Flatten => {}
        }
    }

    fn conv(&mut self, conv: &Conv, width: Width) {
        let Conv { channels, kernel, stride, padding, dilation, groups, bias } = *conv;
        self.width("channels", channels, width);
        self.pair("kernel", kernel, 0);
        self.pair("stride", stride, 1);
        self.padding(padding);
        self.pair("dilation", dilation, 1);
        if groups != 1 {
            self.put("groups", &groups.to_string());
        }
        if !bias {
            self.put("bias", "false");
        }
    }

    fn pool(&mut self, pool: &MaxPool) {
        let MaxPool { kernel, stride, padding, ceil_mode } = *pool;
        self.pair("kernel", kernel, 0);
        self.pair("stride", stride, 0);
        self.padding(padding);
        if ceil_mode {
            self.put("ceil_mode", "true");
        }
    }
}

/// With a point or an exponent, as TOML's numbers with a fraction have.
fn number(value: f32) -> String {
    format!("{value:?}")
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue::{self, MODELS};
    use crate::model::file::from_toml;

    #[test]
    fn every_model_of_the_catalogue_is_read_back() {
        for entry in MODELS {
            let image = [3, entry.side_min.max(32), entry.side_min.max(40)];
            let graph = catalogue::build(entry.name, image, 7, 1.0).expect("known");
            let text = to_toml(&graph);
            assert_eq!(from_toml(&text, image, 7), Ok(graph), "{text}");
        }
    }

    #[test]
    fn the_layer_before_the_classes_takes_their_number() {
        for name in ["resnet18", "squeezenet1_1", "mobilenet_v2"] {
            let graph = catalogue::build(name, [3, 64, 64], 7, 1.0).expect("known");
            let other = catalogue::build(name, [3, 64, 64], 9, 1.0).expect("known");
            assert_eq!(from_toml(&to_toml(&graph), [3, 64, 64], 9), Ok(other), "{name}");
        }
    }

    #[test]
    fn names_and_rare_layers_are_read_back() {
        use super::super::spec::GraphBuilder;
        let mut builder = GraphBuilder::new("a \"b\"\n", [4, 9, 9], 4);
        let conv =
            Conv { kernel: Pair([1, 3]), groups: 2, dilation: Pair::both(2), ..Conv::new(4, 1) };
        let (begin, end) = (Pair([0, 1]), Pair([1, 0]));
        let pool = MaxPool { padding: Padding { begin, end }, ..MaxPool::new(2, 1) };
        builder.then("c.\\'1", LayerKind::Conv(conv));
        builder.then("w", LayerKind::MaxPool(pool));
        builder.then("n", LayerKind::Lrn { size: 5, alpha: 1e-4, beta: 0.75, k: 2.0 });
        builder.then("s", LayerKind::HardSigmoid);
        builder.node("m", LayerKind::Multiply, &[Some(1), Some(3)]);
        builder.then("p", LayerKind::AdaptiveAvgPool { size: Pair([1, 1]) });
        builder.then("x", LayerKind::ChannelShuffle { groups: 2 });
        builder.then("d", LayerKind::Dropout { rate: 0.2 });
        let graph = builder.finish().expect("is right");
        assert_eq!(from_toml(&to_toml(&graph), [4, 9, 9], 4), Ok(graph));
    }
}
