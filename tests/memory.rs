//! Memory that the loader uses again: after the first hundred pictures it asks the kernel for no
//! more. A binary of its own, since what is counted is the process's. Pages are counted and not
//! allocations: the resizing library makes one of a few bytes for each row and column, which the
//! allocator has at hand, while a buffer that is fresh each time is fresh pages each time.

use std::path::Path;

use kintsugi::config::{BadImage, Crop, Data, DataFormat, Look};
use kintsugi::data::jpeg::{Form, encode};
use kintsugi::data::loader::{Loader, LoaderOptions, Threads};
use kintsugi::data::painting::photograph;
use kintsugi::data::sampler::Order;
use kintsugi::data::set::open;
use kintsugi::data::{Normalization, Split};

const PICTURES: u64 = 60;
const SEED: u64 = 3;

/// Pages that the kernel has given to this process so far, without reading them from a disk.
fn pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    // The second field is the name in brackets; `minflt` is the tenth.
    let after = text.rsplit_once(')').expect("a name in brackets").1;
    after.split_whitespace().nth(7).expect("52 fields").parse().expect("a number")
}

fn loader(folder: &Path, threads: usize) -> Loader {
    let data =
        Data { format: DataFormat::ImageFolder, train: Some(folder.to_owned()), ..Data::default() };
    let set = open::open(&data, Split::Train, SEED).expect("a folder of pictures");
    let order = Order::new(PICTURES, 1, SEED, PICTURES).expect("one micro-batch an epoch");
    let crop = Crop::Random { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let options = LoaderOptions {
        threads: Threads::Fixed(threads),
        prefetch: 2,
        steps: None,
        image_size: 224,
        channels: 3,
        augment: true,
        look: Look { crop, ..Look::default() },
        normalization: Normalization::IMAGENET,
        seed: SEED,
        bad_image: BadImage::Fatal,
    };
    Loader::new(set, order, options)
}

#[test]
fn pictures_after_the_first_ones_take_no_more_memory() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for number in 0..PICTURES {
        let class = folder.path().join(if number.is_multiple_of(2) { "even" } else { "odd" });
        std::fs::create_dir_all(&class).expect("made");
        let form = Form { quality: 85, chroma: [2, 2], restart: 0 };
        let file = encode(&photograph::draw(number, 320, 240), form);
        std::fs::write(class.join(format!("{number}.jpg")), file).expect("written");
    }
    for threads in [0, 2] {
        let loader = loader(folder.path(), threads);
        loader.plan(0, &[0]);
        let mut before = 0;
        for step in 0..12 {
            if step == 5 {
                before = pages();
            }
            let batch = loader.take(step, 0).expect("taken");
            assert_eq!(batch.labels.len(), PICTURES as usize);
            loader.give_back(batch);
        }
        let each = (pages() - before) as f64 / (7 * PICTURES) as f64;
        println!("{threads} threads: {each:.2} pages a picture");
        // Its values alone take 147. One more buffer of a micro-batch, when threads are further
        // ahead than before, takes 21 for each of the pictures counted.
        assert!(each < 40.0, "{threads} threads: {each} pages a picture");
    }
}
