//! What of CUDA this machine has beside the driver: each library loaded, or why it is not.

use std::path::Path;

use super::cudnn::Cudnn;
use super::library::{Library, Missing};
use super::nvrtc::Nvrtc;
use super::search::{Origin, Part, Places, builtins};

/// What was found where, and what was not and why. Nothing in it is an error by itself: most
/// machines have none of it.
pub struct Found {
    /// The compiler for kernels.
    pub nvrtc: Result<(Origin, Nvrtc), Missing>,
    /// Convolutions.
    pub cudnn: Result<(Origin, Cudnn), Missing>,
}

impl Found {
    /// Looks, and loads what is there: once in a process.
    pub fn look(places: &Places) -> Self {
        // NVRTC before cuDNN, some of whose plans are compiled too.
        Self { nvrtc: Self::nvrtc(places), cudnn: cudnn(places) }
    }

    /// The compiler alone: what else is there takes hundreds of megabytes to load.
    ///
    /// # Errors
    /// It is nowhere, or does not load.
    pub fn nvrtc(places: &Places) -> Result<(Origin, Nvrtc), Missing> {
        let Some((origin, file)) = places.find(Part::Nvrtc, None) else {
            return of_system(Part::Nvrtc, Nvrtc::open).map(|nvrtc| (Origin::System, nvrtc));
        };
        // It asks for them by their plain name, and looks in no folder of its own.
        if let Some(builtins) = builtins(&file) {
            Library::open(&builtins)?;
        }
        Nvrtc::open(&file).map(|nvrtc| (origin, nvrtc))
    }

    /// cuDNN alone. One that the process has already is taken, wherever it came from: two of them
    /// would call each other's functions.
    ///
    /// # Errors
    /// As of `nvrtc`.
    pub fn cudnn(places: &Places) -> Result<(Origin, Cudnn), Missing> {
        match Library::loaded(Path::new(Part::Cudnn.files()[0])) {
            Some(file) => Cudnn::open(&file).map(|cudnn| (Origin::Given, cudnn)),
            None => cudnn(places),
        }
    }

    /// Whether nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.nvrtc.is_ok() && self.cudnn.is_ok()
    }
}

fn cudnn(places: &Places) -> Result<(Origin, Cudnn), Missing> {
    let place = places.find(Part::Cudnn, None);
    let file = place.as_ref().map(|(_, file)| file.as_path());
    // Without cuBLAS it ends the process in the middle of a call. Of both the same generation.
    let cublas = match places.find(Part::CublasLt, file) {
        Some((_, file)) => Library::open(&file),
        None => of_system(Part::CublasLt, Library::open),
    };
    let shown = file.unwrap_or(Path::new(Part::Cudnn.files()[0])).display().to_string();
    match (cublas, place) {
        (Ok(_), Some((origin, file))) => Cudnn::open(&file).map(|cudnn| (origin, cudnn)),
        (Ok(_), None) => of_system(Part::Cudnn, Cudnn::open).map(|cudnn| (Origin::System, cudnn)),
        (Err(_), None) => Err(Missing::Nowhere { file: shown }),
        (Err(Missing::Nowhere { .. }), _) => {
            Err(Missing::Needs { file: shown, needs: Part::CublasLt.files()[0] })
        }
        (Err(other), _) => Err(other),
    }
}

/// The first of a part's names that the system knows; the usual one is the one to be told of.
fn of_system<T>(part: Part, open: impl Fn(&Path) -> Result<T, Missing>) -> Result<T, Missing> {
    let mut told = None;
    for name in part.files() {
        match open(Path::new(name)) {
            Err(Missing::Nowhere { file }) => told = told.or(Some(Missing::Nowhere { file })),
            other => return other,
        }
    }
    Err(told.unwrap_or(Missing::Nowhere { file: String::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudnn_alone_is_not_loaded() {
        let name = format!("kintsugi-alone-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let folder = root.join("nvidia/cudnn/lib");
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("libcudnn.so.9"), "no library").expect("written");
        let found = Found::look(&Places::of(Some(&root), None, &[]));
        std::fs::remove_dir_all(&root).expect("removed");
        let error = found.cudnn.err().expect("it is no library, and would need another");
        match of_system(Part::CublasLt, Library::open) {
            Ok(_) => assert!(matches!(error, Missing::Unloadable { .. }), "{error}"),
            Err(_) => assert!(error.to_string().contains("it needs libcublasLt.so.13"), "{error}"),
        }
    }
}
