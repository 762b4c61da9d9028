//! `kintsugi model import`: a model file and weights of an ONNX file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use kintsugi_ffi::regular;

use crate::config::Shown;
use crate::model::Shape;
use crate::model::onnx::dense::MOMENTUM;
use crate::model::onnx::import::{HEAD_WEIGHT, Imported, import};
use crate::model::onnx::stored::FilePart;
use crate::model::written::to_toml;
use crate::observe::console::{print_line, say};
use crate::observe::storage::{FileSystem, Storage};
use crate::train::checkpoint::{tensors, weights};

/// Largest file that is read whole: protobuf's bound of a message.
const FILE_BYTES_MAX: u64 = (1 << 31) - 1;

/// Makes a model file (*.toml) and its weights (*.safetensors) of an ONNX file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What torch.onnx.export wrote
    file: PathBuf,
    /// A folder, or the model file to write (*.toml); the weights come beside it [default: beside
    /// the ONNX file]
    #[arg(long)]
    output: Option<PathBuf>,
    /// Channels, height and width of an image, such as 3x224x224, where the file leaves them open
    #[arg(long)]
    input: Option<String>,
    /// Takes a file in which the exporter has folded norms into convolutions: the model is trained
    /// without them
    #[arg(long)]
    without_norms: bool,
}

/// 0, or 2 for a file that gives no model.
pub fn run(args: &Args) -> ExitCode {
    match make(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            say!("kintsugi model import: {}: {reason}", args.file.shown());
            ExitCode::from(2)
        }
    }
}

fn make(args: &Args) -> Result<(), String> {
    let given = match &args.input {
        None => None,
        Some(text) => Some(weights::parse_input(text).ok_or_else(|| {
            format!("--input {}: write channels x height x width: 3x224x224", text.shown())
        })?),
    };
    let places = Places::of(args)?;
    let bytes = regular::read(&args.file, FILE_BYTES_MAX).map_err(|error| error.to_string())?;
    let folder = Folder::of(&args.file)?;
    let stem = places.model.file_stem().map_or("model".into(), |stem| stem.to_string_lossy());
    let imported = import(&stem, &bytes, given, &|part| folder.read(part));
    let imported = imported.map_err(|error| error.to_string())?;
    ask_about_norms(&imported, args.without_norms)?;
    places.write(&imported)?;
    report(&imported, &places);
    Ok(())
}

/// The folder of the file, whose other files may hold tensors.
struct Folder {
    root: PathBuf,
    /// Bytes that were taken of each file: tensors do not overlap.
    taken: RefCell<HashMap<PathBuf, u64>>,
}

impl Folder {
    fn of(file: &Path) -> Result<Self, String> {
        let whole = file.canonicalize().map_err(|error| error.to_string())?;
        let root = whole.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        Ok(Self { root, taken: RefCell::default() })
    }

    /// A part of a file within the folder. Names that lead out of it are refused, links that do
    /// too, and more bytes than the file has, before memory is taken for them.
    fn read(&self, part: FilePart<'_>) -> Result<Vec<u8>, String> {
        let FilePart { file, offset, bytes } = part;
        let name = Path::new(file);
        let inside = |step: Component<'_>| matches!(step, Component::Normal(_) | Component::CurDir);
        let outside = || format!("it lies in {}, outside of the model's folder", file.shown());
        if !name.components().all(inside) {
            return Err(outside());
        }
        let text = |error: std::io::Error| format!("it lies in {}: {error}", file.shown());
        let place = self.root.join(name).canonicalize().map_err(text)?;
        if !place.starts_with(&self.root) {
            return Err(outside());
        }
        let about = place.metadata().map_err(text)?;
        if !about.is_file() {
            return Err(format!("it lies in {}, which is no file", file.shown()));
        }
        let size = about.len();
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(format!(
                "it is {bytes} bytes from {offset} on of {}, which has {size}",
                file.shown()
            ));
        }
        let mut taken = self.taken.borrow_mut();
        let sum = taken.entry(place.clone()).or_default();
        *sum = sum.saturating_add(bytes);
        if *sum > size {
            return Err(format!("tensors overlap in {}", file.shown()));
        }
        let mut opened = File::open(&place).map_err(text)?;
        opened.seek(SeekFrom::Start(offset)).map_err(text)?;
        let mut read = Vec::new();
        opened.take(bytes).read_to_end(&mut read).map_err(text)?;
        Ok(read)
    }
}

/// Where the results go.
struct Places {
    model: PathBuf,
    weights: PathBuf,
}

impl Places {
    fn of(args: &Args) -> Result<Self, String> {
        let name = args.file.file_name().ok_or("is no file")?;
        let named = Path::new(name).with_extension("toml");
        let model = match &args.output {
            None => args.file.with_file_name(named),
            Some(file) if file.extension().is_some_and(|ending| ending == "toml") => file.clone(),
            Some(folder) => folder.join(named),
        };
        let weights = model.with_extension("safetensors");
        for place in [&model, &weights] {
            if place.exists() {
                let place = place.shown();
                return Err(format!(
                    "{place} is there; remove it or name another place with --output"
                ));
            }
        }
        Ok(Self { model, weights })
    }

    /// The weights first: a model file without them would be trained from nothing.
    fn write(&self, imported: &Imported) -> Result<(), String> {
        let Imported { graph, layout, parameters, statistics, about, .. } = imported;
        if let Some(folder) = self.model.parent() {
            let text = |error| format!("cannot make {}: {error}", folder.shown());
            std::fs::create_dir_all(folder).map_err(text)?;
        }
        let input = shown(graph.input);
        let texts = [("format", "pt".to_owned()), ("model", self.model.shown()), ("input", input)];
        let mut about = about.clone();
        about.extend(texts.map(|(key, text)| (key.to_owned(), text)));
        let file = tensors::model_file(layout, parameters, statistics, None, &about);
        let model = to_toml(graph);
        let storage = FileSystem::new("");
        let write = |place: &Path, parts: &[&[u8]]| {
            let text = |error| format!("cannot write {}: {error}", place.shown());
            storage.write_whole(place, parts).map_err(text)
        };
        write(&self.weights, &file.parts())?;
        write(&self.model, &[model.as_bytes()])
    }
}

fn shown(shape: Shape) -> String {
    shape.map(|extent| extent.to_string()).join("x")
}

/// A network without its norms is another one, which may not train at all.
fn ask_about_norms(imported: &Imported, without_norms: bool) -> Result<(), String> {
    let Imported { folded, producer, .. } = imported;
    if *folded == 0 || without_norms {
        return Ok(());
    }
    Err(format!(
        "{} has folded norms into {folded} convolutions or more: the model would be trained \
         without them. To keep them, export with torch.onnx.export(model, args, file, \
         optimize=False), or dynamo=False, training=torch.onnx.TrainingMode.TRAINING. To take it \
         as it is, say --without-norms",
        if producer.is_empty() { "the exporter".into() } else { producer.shown() }
    ))
}

fn report(imported: &Imported, places: &Places) {
    let Imported { graph, layout, copied, without_momentum, .. } = imported;
    let (model, weights) = (places.model.shown(), places.weights.shown());
    print_line!(
        "{model}: {} layers, images {}, {} classes",
        graph.nodes.len(),
        shown(graph.input),
        graph.classes
    );
    let elements = layout.parameters + layout.statistics;
    print_line!("{weights}: {} tensors, {:.1} MB", layout.tensors.len(), elements as f64 * 4e-6);
    if *copied > 0 {
        say!("{copied} tensors were one with others in the file: each layer has its own from here");
    }
    if *without_momentum > 0 {
        say!(
            "{without_momentum} norms have running statistics that never move, or forget all but \
             the last batch, by their momentum in the file: momentum = {MOMENTUM} is taken; the \
             model file may say another"
        );
    }
    for head in &graph.heads {
        let name = graph.nodes[head.node].name.shown();
        say!("{name} is a further output: a classifier whose loss counts {HEAD_WEIGHT}");
    }
    let [channels, height, width] = graph.input;
    if height == width && channels == 3 {
        print_line!(
            "train it with -s model.name={model} -s model.init={weights} -s data.image_size={width}"
        );
    } else {
        print_line!("train it with -s model.name={model} -s model.init={weights}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_beside_the_model_lie_in_its_folder() {
        let place = tempfile::tempdir().expect("a folder");
        let (inner, secret) = (place.path().join("inner"), place.path().join("secret"));
        std::fs::create_dir(&inner).expect("a folder");
        std::fs::write(inner.join("net.onnx"), []).expect("a file");
        std::fs::write(inner.join("net.onnx.data"), [1, 2, 3, 4, 5, 6, 7, 8]).expect("a file");
        std::fs::write(&secret, [0; 64]).expect("a file");
        std::os::unix::fs::symlink(&secret, inner.join("link")).expect("a link");
        let folder = Folder::of(&inner.join("net.onnx")).expect("is there");
        let read = |file, offset, bytes| folder.read(FilePart { file, offset, bytes });
        assert_eq!(read("net.onnx.data", 4, 4), Ok(vec![5, 6, 7, 8]));
        for (file, offset, bytes, message) in [
            ("../secret", 0, 4, "outside of the model's folder"),
            (secret.to_str().expect("is text"), 0, 4, "outside of the model's folder"),
            ("link", 0, 4, "outside of the model's folder"),
            ("net.onnx.data", 4, 8, "which has 8"),
            ("net.onnx.data", u64::MAX, 8, "which has 8"),
            ("none", 0, 4, "No such file"),
            (".", 0, 4, "which is no file"),
            ("net.onnx.data", 0, 8, "tensors overlap"),
        ] {
            let error = read(file, offset, bytes).expect_err(message);
            assert!(error.contains(message), "{error}");
        }
    }
}
