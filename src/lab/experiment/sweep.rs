//! A sweep: keys with lists of values become arms, one for each combination of them. Pure.

use toml::{Table, Value};

use super::file::{Arm, Experiment, RUNS_MAX, SEED};
use crate::lab::keys::{keys, told};
use crate::lab::report::groups::short;

/// What `ranks` is.
const RANKS: &str = "run.ranks";

/// Others are given.
pub fn forget_seeds(sweep: &mut Table) {
    if let Some(Value::Table(run)) = sweep.get_mut("run") {
        run.remove("seed");
    }
    // In quotes.
    sweep.remove(SEED);
}

/// A key and its values.
type Axis = (String, Vec<Value>);

/// The experiment with an arm for every combination of values, and every arm of its file; without
/// both one that is called as the configuration.
///
/// # Errors
/// A key without a list, one that an arm sets too, or more arms than anybody waits for.
pub fn expanded(mut experiment: Experiment) -> Result<Experiment, String> {
    let mut axes = Vec::new();
    for (key, values) in keys(&std::mem::take(&mut experiment.sweep)) {
        let values = match values {
            Value::Array(values) if !values.is_empty() => values,
            other => return Err(refusal(&key, &other, "write its values: [0.1, 0.05]")),
        };
        if key == SEED {
            if experiment.seeds.is_some() {
                return Err(format!("seeds and sweep.{SEED} are the same: write one of them"));
            }
            experiment.seeds = Some(whole(&key, &values)?);
        } else {
            axes.push((key, values));
        }
    }
    let own = std::mem::take(&mut experiment.arms);
    let count = axes.iter().try_fold(own.len().max(1), |all, (_, values)| {
        all.checked_mul(values.len()).filter(|count| *count <= RUNS_MAX)
    });
    if count.is_none() {
        return Err(format!("sweep: more than {RUNS_MAX} arms; sweep fewer values"));
    }
    experiment.arms = match (own.is_empty(), axes.is_empty()) {
        (true, true) => vec![Arm { name: stem(&experiment), ..Arm::default() }],
        (true, false) => grid(&Arm::default(), &axes)?,
        (false, _) => {
            let all = own.iter().map(|arm| grid(arm, &axes)).collect::<Result<Vec<_>, _>>()?;
            all.concat()
        }
    };
    Ok(experiment)
}

/// An arm with every combination; the last key's values change first.
fn grid(arm: &Arm, axes: &[Axis]) -> Result<Vec<Arm>, String> {
    let names: Vec<&String> = axes.iter().map(|(key, _)| key).collect();
    let mut arms = vec![arm.clone()];
    for (key, values) in axes {
        let mut wider = Vec::new();
        for arm in &arms {
            for value in values {
                let mut arm = arm.clone();
                let part = format!("{} {}", short(key, &names), told(value));
                let parts = [std::mem::take(&mut arm.name), part];
                let parts = parts.iter().map(String::as_str).filter(|part| !part.is_empty());
                arm.name = parts.collect::<Vec<_>>().join(", ");
                give(&mut arm, key, value)?;
                wider.push(arm);
            }
        }
        arms = wider;
    }
    Ok(arms)
}

fn give(arm: &mut Arm, key: &str, value: &Value) -> Result<(), String> {
    let again = |name: &str| Err(format!("sweep.{key}: arm {name} sets it too"));
    if key == RANKS {
        let ranks = whole(key, std::slice::from_ref(value))?[0];
        let ranks = u32::try_from(ranks).map_err(|_| refusal(key, value, "write fewer"))?;
        return match arm.ranks.replace(ranks) {
            Some(_) => again(&arm.name),
            None => Ok(()),
        };
    }
    if keys(&arm.set).contains_key(key) {
        return again(&arm.name);
    }
    let (path, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = &mut arm.set;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = entry else { return again(&arm.name) };
        table = inner;
    }
    table.insert(name.to_owned(), value.clone());
    Ok(())
}

fn whole(key: &str, values: &[Value]) -> Result<Vec<u64>, String> {
    let one = |value: &Value| {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| refusal(key, value, "write whole numbers, such as [1, 2]"))
    };
    values.iter().map(one).collect()
}

fn refusal(key: &str, value: &Value, wanted: &str) -> String {
    format!("sweep.{key} = {value} in the experiment: {wanted}")
}

fn stem(experiment: &Experiment) -> String {
    let stem = experiment.config.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::lab::experiment::file::Changes;

    fn experiment(text: &str) -> Result<Experiment, String> {
        let text = format!("title = \"t\"\nconfig = \"quick.toml\"\n{text}");
        toml::from_str::<Experiment>(&text).unwrap().with(&Changes::default())
    }

    fn names(text: &str) -> Vec<String> {
        experiment(text).unwrap().arms.into_iter().map(|arm| arm.name).collect()
    }

    #[test]
    fn arms_are_named_by_the_keys_that_are_swept() {
        let rates = "[sweep]\noptimizer.learning_rate = [0.1, 0.05]\nrun.seed = [1, 2]\n";
        assert_eq!(names(rates), ["learning_rate 0.1", "learning_rate 0.05"]);
        let made = experiment(rates).unwrap();
        assert_eq!(made.seeds(), [1, 2]);
        assert_eq!(made.arms[1].set["optimizer"]["learning_rate"].as_float(), Some(0.05));
        let two = "seeds = [1]\nsweep = { optimizer.name = [\"sgd\", \"adamw\"], \
                   model.name = [\"mlp\"] }";
        let both = ["model.name mlp, optimizer.name sgd", "model.name mlp, optimizer.name adamw"];
        assert_eq!(names(two), both);
        let arms = "seeds = [1]\n[sweep]\nrun.ranks = [2, 4]\n[[arm]]\nname = \"a\"\n";
        assert_eq!(names(arms), ["a, ranks 2", "a, ranks 4"]);
        assert_eq!(experiment(arms).unwrap().arms[1].ranks, Some(4));
        assert_eq!(names("seeds = [1]"), ["quick"]);
    }

    #[test]
    fn what_is_no_sweep_is_refused_by_its_key() {
        let told = |sweep: &str| {
            let arm = "[[arm]]\nname = \"a\"\nset.train.steps = 3\n";
            experiment(&format!("seeds = [1]\nsweep = {{ {sweep} }}\n{arm}")).unwrap_err()
        };
        for (sweep, wanted) in [
            ("train.epochs = 3", "sweep.train.epochs = 3"),
            ("train.epochs = []", "sweep.train.epochs = []"),
            ("train.steps = [1, 2]", "arm a, steps 1 sets it too"),
            ("\"train.steps\" = [1, 2]", "arm a, steps 1 sets it too"),
            ("run.seed = [1]", "write one of them"),
            ("run.ranks = [-1]", "whole numbers"),
            ("train.epochs = [1, 1]", "arm.name = a, epochs 1"),
        ] {
            assert!(told(sweep).contains(wanted), "{sweep}: {}", told(sweep));
        }
        let many = format!("{:?}", (0..200).collect::<Vec<_>>());
        let grid = format!("train.epochs = {many}, train.workers = {many}");
        assert!(told(&grid).contains("more than 10000 arms"));
    }

    fn list(of: &BTreeSet<u32>) -> String {
        format!("{of:?}").replace(['{', '}'], "")
    }

    proptest! {
        #[test]
        fn a_grid_has_every_combination_once(
            rates in prop::collection::btree_set(1u32..1000, 1..6),
            epochs in prop::collection::btree_set(1u32..1000, 1..6),
        ) {
            let text = format!(
                "seeds = [1]\nsweep = {{ optimizer.momentum = [{}], train.epochs = [{}] }}",
                list(&rates),
                list(&epochs)
            );
            let arms = experiment(&text).unwrap().arms;
            let whole = |value: &Value| value.as_integer().unwrap();
            let of = |arm: &Arm| {
                (whole(&arm.set["optimizer"]["momentum"]), whole(&arm.set["train"]["epochs"]))
            };
            let found: BTreeSet<_> = arms.iter().map(of).collect();
            prop_assert_eq!(found.len(), arms.len());
            prop_assert_eq!(arms.len(), rates.len() * epochs.len());
        }
    }
}
