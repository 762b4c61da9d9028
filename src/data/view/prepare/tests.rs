//! Views of pictures that are easily told apart.

use super::*;

fn identity(size: u32, channels: u32) -> Recipe {
    Recipe::new(size, channels, 1, Normalization { mean: [0.0; 3], deviation: [1.0; 3] })
}

fn picture(width: u32, height: u32, level: impl Fn(u32, u32) -> u8) -> Image {
    let at = |i: u32| [level(i % width, i / width); 3];
    Image { width, height, channels: 3, pixels: (0..width * height).flat_map(at).collect() }
}

fn run(recipe: &Recipe, image: &Image, view: View) -> Vec<f32> {
    let mut out = vec![f32::NAN; recipe.values()];
    recipe.fill(&mut Bench::default(), &image.clone().into(), view, &mut out).expect("prepared");
    out
}

#[test]
fn planes_hold_normalised_channels() {
    let image = Image { width: 2, height: 1, channels: 3, pixels: vec![0, 51, 255, 255, 0, 0] };
    let image = Image { height: 2, pixels: image.pixels.repeat(2), ..image };
    let recipe = Recipe::new(2, 3, 1, Normalization { mean: [0.5; 3], deviation: [0.5; 3] });
    let close = run(&recipe, &image, View::Centre)
        .iter()
        .zip([-1.0, 1.0, -1.0, 1.0, -0.6, -1.0, -0.6, -1.0, 1.0, -1.0, 1.0, -1.0])
        .all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close);
}

#[test]
fn the_centre_view_takes_the_middle_square() {
    // Columns 0..10 black, 10..20 white, 20..30 black: the middle square is white.
    let image = picture(30, 10, |x, _| if (10..20).contains(&x) { 255 } else { 0 });
    assert!(run(&identity(10, 3), &image, View::Centre).iter().all(|&v| v == 1.0));
    // The filter reaches over the crop's edge, as far as the picture goes.
    let half = run(&identity(5, 3), &image, View::Centre);
    assert!(half.iter().enumerate().all(|(i, &v)| v > if i % 5 % 4 == 0 { 0.8 } else { 0.99 }));
}

#[test]
fn grey_and_colour_meet() {
    let grey = Image { width: 1, height: 1, channels: 1, pixels: vec![102] };
    assert_eq!(run(&identity(1, 3), &grey, View::Centre), vec![0.4; 3]);
    let red = Image { width: 1, height: 1, channels: 3, pixels: vec![255, 0, 0] };
    assert_eq!(run(&identity(1, 1), &red, View::Centre), vec![76.0 / 255.0]);
}

#[test]
fn views_move_and_flip_within_their_reach_and_depend_on_the_sample_only() {
    let image = picture(32, 32, |x, y| if (x, y) == (16, 16) { 255 } else { 0 });
    let recipe = identity(32, 3);
    let mut places = std::collections::BTreeSet::new();
    for sample in 0..600 {
        let view = View::Drawn { epoch: 3, sample };
        let out = run(&recipe, &image, view);
        assert_eq!(out, run(&recipe, &image, view));
        let at = out[..1024].iter().position(|&v| v > 0.5).expect("the dot stays inside");
        places.insert((at % 32, at / 32));
    }
    // 9 x 9 shifts of the dot at 16 or, flipped, at 15: columns 11..=20, rows 12..=20.
    assert!(places.iter().all(|&(x, y)| (11..=20).contains(&x) && (12..=20).contains(&y)));
    assert!(places.len() > 80, "{} of 90 places", places.len());
}

#[test]
fn random_crops_depend_on_the_sample_only_and_show_what_was_drawn() {
    // Brightness grows to the right only: the columns' levels tell the crop's place.
    let image = picture(200, 100, |x, _| x as u8);
    let crop = Crop::Random { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
    let recipe = identity(20, 3).looking(Look { crop, ..Look::default() });
    let mut flips = 0;
    for sample in 0..100 {
        let view = View::Drawn { epoch: 1, sample };
        let out = run(&recipe, &image, view);
        assert_eq!(out, run(&recipe, &image, view));
        let Draws { part, flip, .. } = recipe.draws(view, [200, 100]);
        let middle = (out[9] + out[10]) / 2.0 * 255.0;
        let expected = part.left + part.width / 2.0 - 0.5;
        assert!((f64::from(middle) - expected).abs() <= 1.0, "{middle}, not {expected}");
        assert_eq!(out[0] > out[19], flip, "of {sample}");
        flips += u32::from(flip);
    }
    assert!((25..75).contains(&flips), "{flips} of 100 are flipped");
}

#[test]
fn a_centre_crop_is_the_evaluations_view_or_its_mirror() {
    let image = picture(30, 12, |x, y| (x * 8 + y) as u8);
    let recipe = identity(6, 1).looking(Look { crop: Crop::Centre, ..Look::default() });
    let plain = run(&recipe, &image, View::Centre);
    let mirror: Vec<f32> = plain.chunks(6).flat_map(|row| row.iter().rev().copied()).collect();
    let of = |sample| run(&recipe, &image, View::Drawn { epoch: 0, sample });
    let seen: Vec<_> = (0..40).map(of).collect();
    assert!(seen.iter().all(|out| *out == plain || *out == mirror));
    assert!(seen.contains(&plain) && seen.contains(&mirror));
}

#[test]
fn flips_come_as_often_as_asked_and_by_default_as_before_the_key() {
    let flips = |look: Look| -> Vec<bool> {
        let recipe = identity(4, 3).looking(look);
        let of = |sample| recipe.draws(View::Drawn { epoch: 2, sample }, [9, 7]).flip;
        (0..1000).map(of).collect()
    };
    let centre = Look { crop: Crop::Centre, ..Look::default() };
    let count =
        |flip: f64| flips(Look { flip, ..centre }).iter().filter(|&&flipped| flipped).count();
    assert_eq!([count(0.0), count(1.0)], [0, 1000]);
    assert!((140..260).contains(&count(0.2)), "{} of 1000", count(0.2));
    let of = |sample| Stream::new(&[1, purpose::AUGMENT, 2, sample]).below(2) == 1;
    assert_eq!(flips(centre), (0..1000).map(of).collect::<Vec<_>>());
}

#[test]
fn the_middle_of_a_resized_picture_needs_no_more_than_its_area() {
    let level = |x: u32, y: u32| ((x * 5) ^ (y * 3)) as u8;
    let image = picture(200, 120, level);
    let recipe = identity(24, 3).looking(Look { resize: Some(30), ..Look::default() });
    let area = recipe.area(View::Centre, [200, 120]).expect("a part is enough");
    let Area { from: [left, top], size: [width, height], .. } = area;
    assert!(width < 120 && height < 120, "{area:?}");
    let part = picture(width, height, |x, y| level(x + left, y + top));
    let cut = Cut { image: part, shrink: area.shrink, from: area.from, whole: [200, 120] };
    let mut out = vec![f32::NAN; recipe.values()];
    recipe.fill(&mut Bench::default(), &cut, View::Centre, &mut out).expect("prepared");
    assert_eq!(out, run(&recipe, &image, View::Centre));
}

#[test]
fn what_moves_in_is_the_mean_colour() {
    let recipe = Recipe::new(8, 3, 1, Normalization::IMAGENET);
    let image = picture(8, 8, |_, _| 255);
    let mut out = vec![f32::NAN; recipe.values()];
    let still = Draws::still(crop::square(0.0, [8, 8]));
    let draws = Draws { shift: [1, -1], flip: true, ..still };
    recipe.normalise(&image.pixels, draws, &mut out);
    let zeros = out[..64].iter().filter(|&&v| v == 0.0).count();
    assert_eq!(zeros, 15, "one row and one column");
}

#[test]
fn what_cannot_be_an_image_is_an_error() {
    let wrong = Image { width: 4, height: 4, channels: 3, pixels: vec![0; 47] };
    let none = Image { width: 0, height: 4, channels: 3, pixels: vec![] };
    let four = Image { width: 1, height: 1, channels: 4, pixels: vec![0; 4] };
    for image in [wrong, none, four] {
        let result = identity(4, 3).fill(
            &mut Bench::default(),
            &image.clone().into(),
            View::Centre,
            &mut [0.0; 48],
        );
        assert!(result.is_err(), "{image:?}");
    }
}
