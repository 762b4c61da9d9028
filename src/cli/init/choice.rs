//! From what was seen of a folder to what is written: pure.

use std::path::Path;

use crate::cli::data::report::{ClassCount, Range};
use crate::config::{Config, ConfigError, Data, Shown, parse};

/// What there is in a folder.
pub struct Seen {
    /// Of the whole folder, or of the part for training where it has two.
    pub samples: u64,
    pub classes: Vec<ClassCount>,
    /// Shorter sides in pixels.
    pub sides: Range,
    /// Pictures that cannot be decoded, of so many that were looked at.
    pub counts: (u64, u64),
    /// Of a folder of their own.
    pub validation_samples: Option<u64>,
    pub warnings: Vec<String>,
}

/// Classes of very unequal size: the largest has so many times the smallest's pictures.
const UNEQUAL: u64 = 10;

impl Seen {
    fn balance(&self) -> (u64, u64) {
        let counts = || self.classes.iter().map(|class| class.samples);
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }

    fn pictures(&self) -> String {
        let (least, most) = self.balance();
        let each =
            if least == most { format!("{most} each") } else { format!("{least} to {most}") };
        format!("{} pictures of {} classes ({each})", self.samples, self.classes.len())
    }

    /// For a person.
    pub fn line(&self, root: &Path) -> String {
        let (Range { min, median, max }, (bad, looked)) = (&self.sides, self.counts);
        let (least, most) = self.balance();
        let more = self.validation_samples.map(|count| format!(", {count} more for validation"));
        let unequal = (most > UNEQUAL * least.max(1)).then_some(
            "\nwarning: some classes have ten times the pictures of others: the error is mostly \
             theirs (`kintsugi evaluate` tells it class by class)",
        );
        let all = if looked == self.samples { "all" } else { "those that were looked at" };
        let readable = match bad {
            0 => format!("{all} can be decoded"),
            bad => format!("{bad} of {looked} that were looked at cannot be decoded"),
        };
        format!(
            "{}: {}{}; shorter sides {min} / {median} / {max} pixels (min / median / max); \
             {readable}{}",
            root.shown(),
            self.pictures(),
            more.unwrap_or_default(),
            unequal.unwrap_or_default()
        )
    }
}

/// What this machine has, and what was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Machinery {
    pub processors: u32,
    pub ranks: Option<u32>,
}

/// Sizes that the model sees, by what the shorter sides are at least in the median.
const SIZES: [(u32, u32); 5] = [(0, 32), (48, 64), (96, 96), (160, 128), (u32::MAX, 224)];
/// Parts of a batch that divide evenly over many numbers of ranks.
const OWNERS: u32 = 12;
const EVEN: [u32; 6] = [12, 6, 4, 3, 2, 1];
/// Pictures that training sees in all, about; and epochs at least and at most.
const SEEN_IN_ALL: u64 = 400_000;
const EPOCHS: (u64, u64) = (15, 100);
/// Where comments begin.
const COMMENTS_AT: usize = 26;
/// Most threads of a rank.
const THREADS_MAX: u32 = 8;

/// What is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    name: String,
    train: String,
    validation: String,
    model: String,
    image_size: u32,
    ranks: u32,
    owners: u32,
    threads: u32,
    batch: u64,
    epochs: u64,
    bad_images_max: Option<f64>,
    processors: u32,
}

impl Choice {
    /// For so many training samples.
    pub fn of(
        name: &str,
        data: &Data,
        seen: &Seen,
        samples: u64,
        machinery: Machinery,
        model: Option<String>,
    ) -> Self {
        let median = seen.sides.median;
        let image_size = SIZES.iter().rev().find(|(from, _)| *from <= median);
        let image_size = image_size.map_or(SIZES[0].1, |(_, size)| *size);
        let usual = if image_size <= SIZES[0].1 { "resnet20" } else { "resnet18" };
        let validation = data.validation.as_ref().map(toml::Value::try_from);
        let (bad, looked) = seen.counts;
        let share = bad as f64 / looked.max(1) as f64;
        let mut choice = Self {
            name: name.to_owned(),
            train: data.train.as_deref().map(Path::to_string_lossy).unwrap_or_default().into(),
            validation: validation.and_then(Result::ok).map(|v| v.to_string()).unwrap_or_default(),
            model: model.unwrap_or_else(|| usual.to_owned()),
            image_size,
            ranks: 1,
            owners: OWNERS,
            threads: 1,
            batch: 0,
            epochs: (SEEN_IN_ALL / samples.max(1)).clamp(EPOCHS.0, EPOCHS.1),
            // Twice as many, since an epoch may meet more of them.
            bad_images_max: (share > 0.005).then(|| (200.0 * share).ceil().min(100.0) / 100.0),
            processors: machinery.processors,
        };
        let ranks = EVEN.into_iter().find(|ranks| *ranks <= machinery.processors);
        choice.share_out(machinery.ranks.unwrap_or_else(|| ranks.unwrap_or(1)), samples);
        if machinery.ranks.is_none() {
            while choice.batch > samples && choice.fewer_ranks() {
                choice.share_out(choice.ranks, samples);
            }
        }
        // A set that is smaller still gives each owner what there is.
        let each = (samples / u64::from(choice.owners)).max(1);
        choice.batch = choice.batch.min(u64::from(choice.owners) * each);
        choice
    }

    /// The batch over so many ranks.
    fn share_out(&mut self, ranks: u32, samples: u64) {
        self.spread(ranks);
        // A norm sees one owner's pictures of a step: eight at least.
        let (owners, each) = match samples {
            2000.. if OWNERS.is_multiple_of(ranks) => (OWNERS, 8),
            500.. => (ranks, 16),
            _ => (ranks, 8),
        };
        self.owners = owners;
        self.batch = u64::from(self.owners) * each;
    }

    fn spread(&mut self, ranks: u32) {
        self.ranks = ranks;
        // One of a rank's processors is for what it does beside computing.
        self.threads = (self.processors / ranks).saturating_sub(1).clamp(1, THREADS_MAX);
    }

    /// The next smaller even number of ranks; false: there is none.
    pub fn fewer_ranks(&mut self) -> bool {
        let fewer = EVEN.into_iter().find(|ranks| *ranks < self.ranks);
        self.spread(fewer.unwrap_or(self.ranks));
        fewer.is_some()
    }

    /// The next larger pictures; false: there are none.
    pub fn enlarge(&mut self) -> bool {
        let larger = SIZES.iter().map(|(_, size)| *size).find(|size| *size > self.image_size);
        self.image_size = larger.unwrap_or(self.image_size);
        larger.is_some()
    }

    /// As it would be read.
    ///
    /// # Errors
    /// What was asked for is no configuration.
    pub fn config(&self) -> Result<Config, ConfigError> {
        parse::of_text(&self.body())
    }

    /// The file.
    pub fn text(&self, seen: &Seen) -> String {
        format!(
            "# Written by `kintsugi init`: {}, most about {} pixels.\n# `kintsugi config explain \
             KEY` tells what a key means, and the defaults of those that are not here.\n{}",
            seen.pictures(),
            seen.sides.median,
            self.body()
        )
    }

    fn body(&self) -> String {
        let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let (larger, bad) = (self.image_size >= SIZES[1].1, self.bad_images_max);
        let photographs = |line: &str| (larger.then(|| line.to_owned()), "");
        let always = |line: String| Some(line);
        let lines = [
            (always(format!("\n[run]\nname = {}", text(&self.name))), ""),
            (always(format!("ranks = {}", self.ranks)), "each is a process"),
            (always(format!("\n[model]\nname = {}", text(&self.model))), ""),
            (always(format!("\n[data]\ntrain = {}", text(&self.train))), ""),
            (always(format!("validation = {}", self.validation)), ""),
            (always(format!("image_size = {}", self.image_size)), "pixels that the model sees"),
            photographs("crop = \"random\""),
            photographs("crop_scale = [0.35, 1.0]"),
            (bad.map(|share| format!("bad_images_max = {share}")), "better mended or removed"),
            (always(format!("\n[train]\nepochs = {}", self.epochs)), ""),
            (always(format!("global_batch = {}", self.batch)), "pictures of a step"),
            (always(format!("owners = {}", self.owners)), "parts of it, whatever the ranks are"),
            ((self.threads > 1).then(|| format!("threads = {}", self.threads)), "of each rank"),
            (always("\n[optimizer]\nlearning_rate = 0.05".into()), ""),
            (always("weight_decay = 5e-4".into()), ""),
            (always("\n[schedule]\nkind = \"cosine\"".into()), "down to nothing at the end"),
            (always("warm_up = \"1epochs\"".into()), "of all epochs: a short try has two at least"),
            (always("reference_batch = 96".into()), "of which the rate is meant"),
        ];
        let kept = lines.into_iter().filter_map(|(line, said)| line.map(|line| (line, said)));
        kept.map(|(line, said)| match said {
            "" => line + "\n",
            said => {
                let wide = line.lines().next_back().map_or(0, |last| last.chars().count());
                format!("{line}{}# {said}\n", " ".repeat(COMMENTS_AT.saturating_sub(wide).max(1)))
            }
        })
        .collect()
    }

    /// For a person.
    pub fn line(&self, steps: u64) -> String {
        let Self { model, image_size, ranks, owners, batch, epochs, .. } = self;
        let bad = self.bad_images_max.map(|share| {
            let percent = share * 100.0;
            format!("; goes on while no more than {percent:.0} % of the pictures are unreadable")
        });
        format!(
            "chosen: {} on {image_size}x{image_size} pixels, {batch} samples a step over {owners} \
             owners, {epochs} epochs ({steps} steps) with a cosine, {ranks} ranks by {} \
             processors{}",
            model.shown(),
            self.processors,
            bad.unwrap_or_default()
        )
    }
}

/// A share of the folder: more of a small one, so that an error can be told from chance.
pub fn share(samples: u64) -> &'static str {
    if samples < 5000 { "20%" } else { "10%" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::resolve_owners;

    fn seen(samples: u64, median: u32) -> Seen {
        let class = |name: &str| ClassCount { name: name.into(), samples: samples / 2 };
        Seen {
            samples,
            classes: vec![class("cat"), class("dog")],
            sides: Range { min: 1, median, max: 9000 },
            counts: (0, samples),
            validation_samples: None,
            warnings: Vec::new(),
        }
    }

    fn choice(samples: u64, median: u32, processors: u32, ranks: Option<u32>) -> Choice {
        let data = Data {
            train: Some("/pictures of \"mine\"/\u{e9}".into()),
            validation: Some("20%".parse().unwrap()),
            ..Data::default()
        };
        let machinery = Machinery { processors, ranks };
        Choice::of("a \"name\"", &data, &seen(samples, median), samples, machinery, None)
    }

    #[test]
    fn whatever_is_there_the_file_is_a_configuration_whose_numbers_fit_each_other() {
        for samples in [4, 20, 100, 700, 5000, 1_281_167] {
            for processors in [1, 2, 3, 5, 8, 64, 256] {
                for ranks in [None, Some(1), Some(2), Some(5), Some(24)] {
                    let chosen = choice(samples, 100, processors, ranks);
                    let config = parse::of_text(&chosen.text(&seen(samples, 100)));
                    let config = config.unwrap_or_else(|error| panic!("{chosen:?}: {error}"));
                    let owners = resolve_owners(&config);
                    assert!(owners.is_multiple_of(config.run.ranks), "{chosen:?}");
                    assert_eq!(config.train.global_batch % u64::from(owners), 0, "{chosen:?}");
                    if ranks.is_none() {
                        assert!(config.run.ranks <= processors, "{chosen:?}");
                        assert!(config.train.global_batch <= samples, "{chosen:?}");
                    }
                    assert_eq!(config.run.name, "a \"name\"");
                    assert_eq!(config, chosen.config().unwrap());
                }
            }
        }
    }

    /// `launch` refuses a batch that is larger than the set, and nobody chose this one.
    #[test]
    fn no_step_has_more_pictures_than_there_are() {
        let asked = [None, Some(1), Some(2), Some(5), Some(24)];
        for samples in 1..=200 {
            for processors in [1, 2, 4, 6, 12, 64, 256] {
                for ranks in asked {
                    let chosen = choice(samples, 100, processors, ranks);
                    // Every rank that was asked for needs a picture.
                    let least = u64::from(ranks.unwrap_or(1));
                    assert!(chosen.batch <= samples.max(least), "of {samples}: {chosen:?}");
                    assert_eq!(chosen.batch % u64::from(chosen.owners), 0, "{chosen:?}");
                }
            }
        }
    }

    #[test]
    fn pictures_decide_the_size_and_the_model() {
        for (median, size, model) in [
            (28, 32, "resnet20"),
            (64, 64, "resnet18"),
            (100, 96, "resnet18"),
            (500, 128, "resnet18"),
        ] {
            let chosen = choice(5000, median, 4, None);
            assert_eq!((chosen.image_size, chosen.model.as_str()), (size, model));
        }
        let mut chosen = choice(5000, 500, 4, None);
        assert!(chosen.enlarge() && chosen.image_size == 224 && !chosen.enlarge());
        assert!(chosen.fewer_ranks() && chosen.ranks == 3);
    }

    #[test]
    fn unreadable_pictures_are_allowed_for_and_named() {
        let mut some = seen(1000, 64);
        some.counts = (30, 1000);
        let data = Data { train: Some("/p".into()), ..Data::default() };
        let machinery = Machinery { processors: 4, ranks: None };
        let chosen = Choice::of("p", &data, &some, 1000, machinery, None);
        assert_eq!(chosen.bad_images_max, Some(0.06));
        assert!(
            some.line(Path::new("/p")).contains("30 of 1000"),
            "{}",
            some.line(Path::new("/p"))
        );
    }
}
