//! Where NVRTC, cuBLAS and cuDNN lie. They come as PyPI wheels, whose folders are `nvidia/...`
//! below a python's packages or wherever one unpacks them, or with the system.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::os;

/// Names a folder of wheels, or of the libraries themselves.
pub const VARIABLE: &str = "KINTSUGI_CUDA";
/// Where `cluster-scripts/setup.sh --cuda` unpacks the wheels.
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.deps/cuda");

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The compiler for kernels.
    Nvrtc,
    /// A part of cuBLAS, which cuDNN needs.
    CublasLt,
    /// Convolutions.
    Cudnn,
}

impl Part {
    /// The file's names, the best first: the number is the version of its interface.
    pub(super) fn files(self) -> &'static [&'static str] {
        match self {
            Self::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Self::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Self::Cudnn => &["libcudnn.so.9"],
        }
    }
}

/// By whom a library came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The folder that was named.
    Given,
    /// `.deps/cuda` of the project.
    Project,
    /// A python's packages.
    Python,
    /// Where the system's loader looks.
    System,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Given => "as named",
            Self::Project => "the project's",
            Self::Python => "a python's",
            Self::System => "the system's",
        })
    }
}

/// Folders to look in, in this order; then the system's.
#[derive(Debug, Clone, Default)]
pub struct Places {
    folders: Vec<(Origin, PathBuf)>,
}

impl Places {
    /// The folder that was named (here or by `KINTSUGI_CUDA`), the project's `.deps/cuda`, and the
    /// packages of this environment's pythons. No python is run: where its packages lie follows
    /// from where it lies.
    pub fn usual(given: Option<&Path>) -> Self {
        let variable = |name| os::variable(name).filter(|value| !value.is_empty());
        let path = variable("PATH").unwrap_or_default();
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
        let mut prefixes: Vec<PathBuf> = environments.map(PathBuf::from).collect();
        prefixes.extend(std::env::split_paths(&path).flat_map(|folder| installations(&folder)));
        prefixes.extend(variable("HOME").map(|home| Path::new(&home).join(".local")));
        // Debian's pythons have packages there too.
        prefixes.push(PathBuf::from("/usr/local"));
        let given = given.map(Path::to_owned).or_else(|| variable(VARIABLE).map(PathBuf::from));
        let project = Path::new(PROJECT).canonicalize().ok();
        Self::of(given.as_deref(), project.as_deref(), &prefixes)
    }

    /// The same with the pythons' installation folders as they are said here.
    pub fn of(given: Option<&Path>, project: Option<&Path>, prefixes: &[PathBuf]) -> Self {
        let mut folders: Vec<_> =
            given.map(|folder| (Origin::Given, folder.into())).into_iter().collect();
        folders.extend(project.map(|folder| (Origin::Project, folder.to_owned())));
        for folder in prefixes.iter().flat_map(|prefix| packages(prefix)) {
            let entry = (Origin::Python, folder);
            if !folders.contains(&entry) {
                folders.push(entry);
            }
        }
        Self { folders }
    }

    /// The first file that fits. The folder in which another file lies comes before all others:
    /// what comes together fits together.
    pub(super) fn find(&self, part: Part, other: Option<&Path>) -> Option<(Origin, PathBuf)> {
        let near = other.and_then(|file| self.folders.iter().find(|(_, f)| file.starts_with(f)));
        let mut folders = near.into_iter().chain(&self.folders);
        folders.find_map(|(origin, folder)| Some((*origin, within(folder, part)?)))
    }
}

/// The installations that a folder with a `python3` belongs to: the folder's own, which may be a
/// virtual environment, and that of the file behind the link.
fn installations(folder: &Path) -> Vec<PathBuf> {
    let python = folder.join("python3");
    let Ok(file) = python.canonicalize() else { return Vec::new() };
    let above = |path: &Path| path.parent()?.parent().map(Path::to_owned);
    [above(&python), above(&file)].into_iter().flatten().collect()
}

/// The folders of packages of an installation.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let named = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("python3").then(|| entry.path())
    };
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut pythons: Vec<PathBuf> = entries.filter_map(named).collect();
    // One environment has one; of a system's the newest counts first.
    pythons.sort_by_key(|path| std::cmp::Reverse(minor(path)));
    let of = |python: &PathBuf| ["site-packages", "dist-packages"].map(|name| python.join(name));
    pythons.iter().flat_map(of).filter(|folder| folder.join("nvidia").is_dir()).collect()
}

/// 12 of `.../python3.12`.
fn minor(python: &Path) -> u32 {
    let name = python.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The file in a folder: in the wheels' folders, or plainly.
fn within(folder: &Path, part: Part) -> Option<PathBuf> {
    let wheel = match part {
        Part::Nvrtc => "cuda_nvrtc",
        Part::CublasLt => "cublas",
        Part::Cudnn => "cudnn",
    };
    // CUDA 13's wheels share a folder, older ones have one each; `nvidia` itself may be named.
    let below = ["nvidia/", ""]
        .into_iter()
        .flat_map(|nvidia| [format!("{nvidia}{wheel}/lib"), format!("{nvidia}cu13/lib")]);
    let plain = ["lib64", "lib", ""].map(String::from);
    let folders: Vec<PathBuf> = below.chain(plain).map(|name| folder.join(name)).collect();
    let file = |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|f| f.is_file());
    part.files().iter().find_map(file)
}

/// NVRTC's builtins, which lie beside it and which it does not find by itself.
pub(super) fn builtins(nvrtc: &Path) -> Option<PathBuf> {
    let version = nvrtc.file_name()?.to_str()?.rsplit('.').next()?;
    let begin = format!("libnvrtc-builtins.so.{version}");
    let entries = std::fs::read_dir(nvrtc.parent()?).ok()?.flatten();
    let fits = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(&begin));
    entries.filter(|entry| fits(&entry.file_name())).map(|entry| entry.path()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Empty files, in a folder that goes with this.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[&str]) -> Self {
            let root = std::env::temp_dir().join(format!("kintsugi-{name}-{}", std::process::id()));
            for file in files {
                let path = root.join(file);
                std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
                std::fs::write(path, "").expect("written");
            }
            Self(root)
        }

        fn find(&self, part: Part, beside: Option<&Path>) -> Option<(Origin, PathBuf)> {
            let [given, project] = ["given", "project"].map(|name| self.0.join(name));
            let places = Places::of(Some(&given), Some(&project), &[self.0.join("python")]);
            let (origin, path) = places.find(part, beside)?;
            Some((origin, path.strip_prefix(&self.0).expect("of the tree").to_owned()))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_named_comes_before_the_projects_and_that_before_a_pythons() {
        let python = "python/lib/python3.11/site-packages/nvidia";
        let files = [
            &format!("{python}/cu13/lib/libnvrtc.so.13"),
            &format!("{python}/cudnn/lib/libcudnn.so.9"),
            &format!("{python}/cublas/lib/libcublasLt.so.12"),
            "project/nvidia/cu13/lib/libnvrtc.so.13",
            "project/nvidia/cudnn/lib/libcudnn.so.9",
            "given/lib64/libnvrtc.so.12",
        ];
        let tree = Tree::new("search", &files);
        let wheels = tree.0.join("project/nvidia");
        let named = Places::of(Some(&wheels), None, &[]).find(Part::Cudnn, None);
        assert_eq!(named, Some((Origin::Given, tree.0.join(files[4]))));
        let found = |origin, file: &str| Some((origin, PathBuf::from(file)));
        assert_eq!(tree.find(Part::Nvrtc, None), found(Origin::Given, files[5]));
        assert_eq!(tree.find(Part::Cudnn, None), found(Origin::Project, files[4]));
        assert_eq!(tree.find(Part::CublasLt, None), found(Origin::Python, files[2]));
        let beside = tree.0.join(files[0]);
        assert_eq!(tree.find(Part::Nvrtc, Some(&beside)), found(Origin::Python, files[0]));
    }

    #[test]
    fn the_builtins_are_of_the_compilers_version() {
        let files = ["libnvrtc.so.13", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.so.13.0"];
        let tree = Tree::new("builtins", &files);
        assert_eq!(builtins(&tree.0.join(files[0])), Some(tree.0.join(files[2])));
        assert_eq!(builtins(&tree.0.join("none/libnvrtc.so.13")), None);
    }
}
