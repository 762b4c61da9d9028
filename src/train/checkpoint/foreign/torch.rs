//! What `torch.save` writes: a zip archive of a pickle, `data.pkl`, and of the storages that it
//! names, `data/KEY`. The pickle is read as data. Only names that a dictionary of tensors needs may
//! stand in it; any other is refused by name, and nothing is ever looked up or run.

use std::collections::BTreeMap;

use crate::config::Shown;
use crate::data::pickle::{Id, Pickle};

use super::file::{Foreign, check_tensor};
use super::tensor::{Element, Sign, Tensor};
use super::zip;

/// What files of `torch.save` before PyTorch 1.6 begin with.
pub(super) const PICKLE_START: &[u8] = &[0x80];
pub(super) const OLD: &str = "it is a bare pickle, as torch.save wrote before PyTorch 1.6: write \
    it again with torch.save(torch.load(\"OLD.pth\", weights_only=True), \"NEW.pth\")";
/// Largest pickle, and most values in one. It holds no weights: some 200 bytes a tensor.
const PICKLE_BYTES_MAX: usize = 4 << 20;
const PICKLE_VALUES_MAX: usize = 1 << 20;
/// Names that a file may ask for: of tensors, and of data that programs keep beside them. Nothing
/// stands behind them here but the words.
const KNOWN: [&str; 36] = [
    "collections.OrderedDict",
    "torch.Size",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "torch.device",
    "torch.float16",
    "torch.bfloat16",
    "torch.float32",
    "torch.float64",
    "torch.int32",
    "torch.int64",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.float32",
    "numpy.float64",
    "_codecs.encode",
    "collections.defaultdict",
    "collections.Counter",
    "collections.deque",
    "__builtin__.set",
    "__builtin__.frozenset",
    "__builtin__.list",
    "__builtin__.dict",
    "__builtin__.int",
    "__builtin__.float",
    "__builtin__.object",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "datetime.datetime",
    "datetime.timedelta",
    "copy_reg._reconstructor",
];
/// Storages of these elements.
const STORAGES: [&str; 10] =
    ["Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool"];
/// Where programs keep the weights within a larger dictionary.
const WRAPPERS: [&str; 4] = ["state_dict", "model_state_dict", "model", "net"];
/// What to do about a tensor that is more than its numbers.
const PLAIN: &str = "save plain copies, with torch.save({name: tensor.resolve_conj()\
    .resolve_neg().clone() for name, tensor in weights.items()}, \"NEW.pth\"), where weights = \
    torch.load(\"OLD.pth\", weights_only=True)";

/// Opens a file.
///
/// # Errors
/// What it is instead, or what is wrong with it, in words.
pub(super) fn open(bytes: &[u8]) -> Result<Foreign<'_>, String> {
    let entries = zip::open(bytes)?;
    let folder = entries
        .keys()
        .find_map(|name| name.strip_suffix("/data.pkl"))
        .ok_or("it is a zip archive without data.pkl: torch.save did not write it")?
        .to_owned();
    let archive = Archive { entries, folder };
    if archive.entry("byteorder").is_some_and(|order| order != b"little") {
        return Err("its numbers are big-endian: save it again on a little-endian machine".into());
    }
    let pickle = archive.entry("data.pkl").unwrap_or_default();
    if pickle.len() > PICKLE_BYTES_MAX {
        let length = pickle.len();
        return Err(format!("its data.pkl has {length} bytes, at most {PICKLE_BYTES_MAX}"));
    }
    let pickle = Pickle::read_within(pickle, PICKLE_VALUES_MAX)?;
    refuse_names(&pickle)?;
    let mut file = Foreign::default();
    let (chosen, entries) = weights(&pickle)?;
    file.chosen = chosen;
    for &(key, value) in entries {
        let name = pickle.bytes(key).map(|name| String::from_utf8_lossy(name).into_owned());
        let name = name.ok_or("a key of its dictionary is no text")?;
        match arguments_of(&pickle, value) {
            None => file.passed_over.push(name),
            Some(arguments) => {
                refuse_changes(&pickle, value).map_err(|what| plain(&name, &what))?;
                let tensor = archive.tensor(&pickle, &name, arguments)?;
                check_tensor(file.tensors.len(), &tensor.name, &tensor.shape)?;
                file.tensors.push(tensor);
            }
        }
    }
    Ok(file)
}

/// Whatever the file asks for must be known, whether it would be called or not.
fn refuse_names(pickle: &Pickle<'_>) -> Result<(), String> {
    let unknown = |name: &&str| !KNOWN.contains(name) && storage(name).is_none();
    pickle.names().find(unknown).map_or(Ok(()), |name| Err(asks_for(name, "[\"state_dict\"]")))
}

/// The refusal of what only running it would give; `within`: what is to be taken of it.
fn asks_for(name: &str, within: &str) -> String {
    let name = name.shown();
    format!(
        "it asks for {name}, which no weights need: nothing of it was run. To run it is to trust \
         whoever wrote the file; then, where that program is installed, write the weights alone, \
         with torch.save(torch.load(\"OLD.pth\", weights_only=False){within}, \"NEW.pth\")"
    )
}

/// `torch.FloatStorage` -> `Float`.
fn storage(name: &str) -> Option<&str> {
    let word = name.strip_prefix("torch.")?.strip_suffix("Storage")?;
    STORAGES.contains(&word).then_some(word)
}

/// Names with tensors, and what is said of where they lie.
type Chosen<'p> = (Option<String>, &'p [(Id, Id)]);

/// The dictionary that holds the weights: the only entry with a usual name, the whole, or the only
/// entry that holds tensors. A whole that holds a few tensors besides is a program's (`best_acc1`).
/// Where it is an entry that somebody might not expect, this is said.
fn weights<'p>(pickle: &'p Pickle<'_>) -> Result<Chosen<'p>, String> {
    let root = pickle.root();
    let holds = |id: Id| {
        let entries = pickle.entries(id)?;
        entries.iter().any(|(_, value)| tensor_of(pickle, *value).is_some()).then_some(entries)
    };
    let inner = pickle.entries(root).unwrap_or_default();
    let holding: Vec<_> =
        inner.iter().filter_map(|(key, value)| Some((*key, holds(*value)?))).collect();
    let is_usual = |key: Id| {
        pickle.bytes(key).is_some_and(|name| WRAPPERS.iter().any(|usual| usual.as_bytes() == name))
    };
    let mut usual: Vec<_> = holding.iter().filter(|(key, _)| is_usual(*key)).collect();
    // One under two names is one.
    usual.dedup_by_key(|(_, entries)| entries.as_ptr());
    let tensors = |entries: &[(Id, Id)]| {
        entries.iter().filter(|(_, value)| tensor_of(pickle, *value).is_some()).count()
    };
    match usual[..] {
        [] => {
            if let Some(whole) = holds(root) {
                return Ok((None, whole));
            }
        }
        [(key, only)] if tensors(inner) < tensors(only) => {
            let others = holding.iter().filter(|(_, one)| one.as_ptr() != only.as_ptr());
            let beside: Vec<_> = others.map(|(key, _)| *key).collect();
            let said = || format!("{}, none of {}", taken(pickle, *key), names(pickle, &beside));
            return Ok(((!beside.is_empty()).then(said), only));
        }
        _ => {
            let keys: Vec<_> = usual.iter().map(|(key, _)| *key).collect();
            return Err(no_weights(pickle, &keys));
        }
    }
    // Beside the model as an object, whatever holds tensors is something else: averaged weights.
    let is_object =
        |name: &&str| pickle.entry(root, name).is_some_and(|id| pickle.class(id).is_some());
    match holding[..] {
        [(key, only)] if !WRAPPERS.iter().any(is_object) => Ok((Some(taken(pickle, key)), only)),
        _ => Err(no_weights(pickle, &holding.iter().map(|(key, _)| *key).collect::<Vec<_>>())),
    }
}

/// The refusal of a file in which no dictionary is the weights; several hold tensors, or none.
fn no_weights(pickle: &Pickle<'_>, holding: &[Id]) -> String {
    let root = pickle.root();
    let inner = WRAPPERS.iter().filter_map(|name| Some((*name, pickle.entry(root, name)?)));
    let mut objects = inner.chain([("", root)]).filter_map(|(name, id)| {
        let within = if name.is_empty() { String::new() } else { format!("[{name:?}]") };
        Some(asks_for(pickle.class(id)?, &format!("{within}.state_dict()")))
    });
    if !holding.is_empty() {
        return format!(
            "tensors lie in it as {}, and which are the weights is not said: write one of them \
             alone, with torch.save(torch.load(\"OLD.pth\", weights_only=True)[NAME], \
             \"NEW.pth\")",
            names(pickle, holding)
        );
    }
    objects.next().unwrap_or_else(|| {
        format!(
            "it is no dictionary of tensors, and none lies in it as {}: find the weights with \
             torch.load(\"OLD.pth\", weights_only=True) and write them alone, with \
             torch.save(WEIGHTS, \"NEW.pth\")",
            WRAPPERS.map(|name| format!("\"{name}\"")).join(", ")
        )
    })
}

fn taken(pickle: &Pickle<'_>, key: Id) -> String {
    format!("the tensors of {} are taken", names(pickle, &[key]))
}

/// Keys that are text.
fn names(pickle: &Pickle<'_>, keys: &[Id]) -> String {
    let named = keys.iter().filter_map(|key| pickle.bytes(*key));
    let shown = named.map(|name| format!("{:?}", String::from_utf8_lossy(name)));
    shown.collect::<Vec<String>>().join(", ")
}

/// The call that would make a tensor; a parameter is a tensor with more beside it.
fn tensor_of(pickle: &Pickle<'_>, id: Id) -> Option<Id> {
    let is_tensor = |id: Id| {
        let (name, ..) = pickle.call(id)?;
        (name == "torch._utils._rebuild_tensor_v2").then_some(id)
    };
    match pickle.call(id)? {
        ("torch._utils._rebuild_parameter", arguments, _) => is_tensor(*arguments.first()?),
        _ => is_tensor(id),
    }
}

/// What it would be made from.
fn arguments_of<'p>(pickle: &'p Pickle<'_>, id: Id) -> Option<&'p [Id]> {
    pickle.call(tensor_of(pickle, id)?).map(|(_, arguments, _)| arguments)
}

/// What would be done to a tensor after it was made, or what a parameter is besides, may change its
/// numbers: nothing of that is passed over.
fn refuse_changes(pickle: &Pickle<'_>, id: Id) -> Result<(), String> {
    for made in std::iter::once(id).chain(tensor_of(pickle, id)) {
        let Some((name, arguments, _)) = pickle.call(made) else { continue };
        if pickle.is_changed(made) {
            return Err("it is changed after it was made".into());
        }
        let known = if name == "torch._utils._rebuild_parameter" { 3 } else { 7 };
        if arguments.len() > known {
            let count = arguments.len();
            return Err(format!("{name} is called with {count} arguments, and {known} are known"));
        }
    }
    Ok(())
}

/// The refusal of a tensor that is more than its numbers.
fn plain(name: &str, what: &str) -> String {
    format!("tensor {name:?}: {what}; {PLAIN}")
}

/// What PyTorch keeps of a tensor besides its place (`torch._utils.set_tensor_metadata`): bits that
/// say what its elements mean.
fn sign_of(pickle: &Pickle<'_>, metadata: Id) -> Result<Sign, String> {
    let entries = pickle.entries(metadata).ok_or("its metadata are no dictionary")?;
    let mut sign = Sign::Stored;
    for &(key, value) in entries {
        let key = pickle.bytes(key).map(|key| String::from_utf8_lossy(key).into_owned());
        sign = match (key.as_deref(), pickle.integer(value)) {
            (Some("neg"), Some(1)) => Sign::Turned,
            (Some("neg"), Some(0)) => Sign::Stored,
            (Some("conj"), Some(0)) => sign,
            (Some("conj"), _) => return Err("it is kept conjugated (the bit \"conj\")".into()),
            (Some(key), _) => return Err(format!("its metadata say {}", key.shown())),
            (None, _) => return Err("its metadata have a key that is no text".into()),
        };
    }
    Ok(sign)
}

/// The archive, and the folder in it that everything lies in.
struct Archive<'a> {
    entries: BTreeMap<&'a str, &'a [u8]>,
    folder: String,
}

impl<'a> Archive<'a> {
    fn entry(&self, name: &str) -> Option<&'a [u8]> {
        self.entries.get(format!("{}/{name}", self.folder).as_str()).copied()
    }

    /// `_rebuild_tensor_v2(storage, first element, sizes, strides, whether it learns, hooks,
    /// metadata)`, where a storage is `("storage", class, key, device, elements)`.
    fn tensor(
        &self,
        pickle: &Pickle<'_>,
        name: &str,
        arguments: &[Id],
    ) -> Result<Tensor<'a>, String> {
        let odd = |what: &str| format!("tensor {name:?}: {what}");
        let [place, start, shape, strides, ..] = *arguments else {
            return Err(odd("too few arguments"));
        };
        let place = pickle.outside(place).and_then(|id| pickle.items(id));
        let Some([_, class, key, _, count]) = place else {
            return Err(odd("its storage is not in the archive"));
        };
        let word = pickle.name(*class).and_then(storage).ok_or_else(|| odd("no known storage"))?;
        let element = match word {
            "Float" => Element::F32,
            "Half" => Element::F16,
            "BFloat16" => Element::Bf16,
            "Double" => Element::F64,
            other => Element::Other(other.to_owned()),
        };
        let key = pickle.bytes(*key).and_then(|key| std::str::from_utf8(key).ok());
        let key = key.ok_or_else(|| odd("its storage has no name"))?;
        let body = self.entry(&format!("data/{key}"));
        let body =
            body.ok_or_else(|| odd(&format!("its storage data/{} is missing", key.shown())))?;
        let count = pickle.integer(*count).and_then(|count| usize::try_from(count).ok());
        let says = element.bytes().zip(count).map(|(width, count)| width.checked_mul(count));
        if says.is_some_and(|says| says != Some(body.len())) {
            let (count, held) = (count.unwrap_or_default(), body.len());
            return Err(odd(&format!("its storage has {held} bytes, and says {count} elements")));
        }
        let sizes = |id: Id, what: &str| {
            let numbers = pickle.integers(id).ok_or_else(|| odd(&format!("no {what}")))?;
            let sizes: Result<Vec<usize>, _> = numbers.into_iter().map(usize::try_from).collect();
            sizes.map_err(|_| odd(&format!("negative {what}")))
        };
        let (shape, strides) = (sizes(shape, "sizes")?, sizes(strides, "strides")?);
        let start = pickle.integer(start).and_then(|start| usize::try_from(start).ok());
        let start = start.ok_or_else(|| odd("its first element is no number"))?;
        let sign = match arguments.get(6) {
            Some(metadata) => sign_of(pickle, *metadata).map_err(|what| plain(name, &what))?,
            None => Sign::Stored,
        };
        let mut tensor = Tensor::view(name.to_owned(), element, shape, strides, start, body)?;
        tensor.sign = sign;
        Ok(tensor)
    }
}
