//! What an attempt runs on and is made with, for whoever looks at the run later.

use kintsugi_ffi::{mpi, os};

use crate::observe::event::{Kind, Setup};
use crate::observe::machine::{COMMIT, VERSION, machine};

use crate::train::plan::Facts;

/// Of this process; `arithmetic`: what it computes with.
pub fn of(facts: &Facts, arithmetic: &str) -> Kind {
    Kind::Setup(Setup {
        host: os::hostname(),
        machine: machine(),
        kintsugi: VERSION.to_owned(),
        commit: COMMIT.map(str::to_owned),
        mpi: mpi::library_version(),
        arithmetic: arithmetic.to_owned(),
        classes: facts.about.classes.len() as u64,
        input: facts.about.input.map(|size| size as u64),
    })
}
