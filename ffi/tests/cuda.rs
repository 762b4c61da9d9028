//! CUDA without a card: a driver of our own (`cuda/driver.c`) stands in for the real one. It runs
//! what the program does with a device, and fails where it is told to. NVRTC is the real one, where
//! it is.

use std::path::Path;
use std::process::Command;

use kintsugi_ffi::cuda::{
    Argument, Buffer, Context, Driver, Error, Event, Landing, Missing, Module, Shape, Staging,
    Stream, Timing,
};

#[path = "cuda/executing.rs"]
mod executing;
#[path = "cuda/fake.rs"]
mod fake;

use fake::Fake;

/// What the fake driver takes for machine code.
const CUBIN: &[u8] = b"\x7fELF\0";

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
}

#[test]
fn no_driver_is_one_clear_value() {
    let error = Driver::open(Some(Path::new("/nowhere/libcuda.so.1"))).expect_err("there is none");
    assert_eq!(error, Missing::Nowhere { file: "/nowhere/libcuda.so.1".into() });
}

#[test]
fn a_driver_without_a_device_says_so_when_it_is_opened() {
    let fake = Fake::new("no_device");
    fake.fail("cuInit=100");
    let error = fake.open().expect_err("it has no device");
    assert!(matches!(&error, Missing::Call(call) if call.is_no_device()), "{error}");
    let text = "cuInit: 100 CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_function_that_the_driver_lacks_is_named() {
    // Any library will do that has no function of the driver's.
    let error = Driver::open(Some(Path::new("libc.so.6"))).expect_err("it is no driver");
    let expected = Missing::Symbol { file: "libc.so.6".into(), symbol: "cuInit" };
    assert_eq!(error, expected);
}

#[test]
fn the_device_says_what_it_is() {
    let fake = Fake::new("device");
    let driver = fake.open().expect("it opens");
    assert_eq!((driver.version(), driver.place()), (13000, fake.file()));
    let devices = driver.devices().expect("it has one");
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0].name().as_deref(), Ok("a fake device"));
    assert_eq!(devices[0].architecture().as_deref(), Ok("sm_90"));
    assert_eq!(devices[0].memory_bytes(), Ok(1 << 30));
}

#[test]
fn a_copy_there_and_back_holds_and_no_copy_leaves_its_buffer() {
    let fake = Fake::new("copy");
    let context = fake.context();
    let (stream, buffer) = (Stream::new(&context), Buffer::new(&context, 4096));
    let (stream, buffer) = (stream.expect("a stream"), buffer.expect("a buffer"));
    let sent: Vec<u8> = (0..1000_u32).map(|i| i as u8).collect();
    stream.write(&buffer, 96, &sent).expect("it fits");
    stream.clear(&buffer, 100..110).expect("within");
    let mut back = vec![0; 1000];
    stream.read(&buffer, 96, &mut back).expect("as many");
    assert_eq!((&back[..4], &back[14..]), (&sent[..4], &sent[14..]));
    assert_eq!(back[4..14], [0; 10]);
    let far = stream.write(&buffer, 3097, &sent).expect_err("one byte too many");
    assert_eq!(far.to_string(), "cuMemcpyHtoDAsync: 1000 bytes from 3097 on, of 4096");
    assert!(stream.read(&buffer, usize::MAX, &mut back).is_err());
    assert!(stream.clear(&buffer, 4090..4097).is_err());
    assert!(Buffer::new(&context, 0).is_err());
}

#[test]
fn staging_memory_carries_copies_that_nobody_waits_for() {
    let fake = Fake::new("staging");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let buffer = Buffer::new(&context, 64).expect("a buffer");
    let mut staging = Staging::new(&context, 128).expect("some memory");
    staging.put(32, &[7; 64]).expect("it fits");
    stream.upload(&buffer, 0, &staging, 32..96).expect("both fit");
    stream.download(&buffer, 60, &mut staging, 0..4).expect("both fit");
    let event = Event::new(&context, Timing::Off).expect("an event");
    stream.record(&event).expect("recorded");
    event.synchronize().expect("it has happened");
    let mut back = [0; 5];
    staging.get(0, &mut back).expect("as many");
    assert_eq!(back, [7, 7, 7, 7, 0]);
    assert!(staging.put(65, &[0; 64]).is_err() && staging.get(128, &mut back).is_err());
    assert!(stream.upload(&buffer, 1, &staging, 0..64).is_err());
    let other = Fake::new("staging_of_another").context();
    let stream = Stream::new(&other).expect("a stream");
    let error = stream.upload(&buffer, 0, &staging, 0..4).expect_err("not its memory");
    assert!(error.to_string().contains("another context"), "{error}");
}

#[test]
fn what_is_on_its_way_is_waited_for_before_anybody_reads_it() {
    let fake = Fake::new("landing");
    let context = fake.context();
    let (stream, buffer) =
        (Stream::new(&context).expect("a stream"), Buffer::new(&context, 64).expect("memory"));
    let mut landing = Landing::new(&context, 32).expect("pinned memory");
    assert_eq!(landing.wait().expect("nothing is on its way"), [0; 32]);
    for turn in 1..3 {
        stream.write(&buffer, 16, &[turn; 32]).expect("it fits");
        stream.land(&buffer, 16, 32, &mut landing).expect("it is on its way");
        let twice = stream.land(&buffer, 16, 32, &mut landing).expect_err("it was not waited for");
        assert!(matches!(twice, Error::Refused { .. }), "{twice}");
        assert_eq!(landing.wait().expect("it arrives"), [turn; 32]);
    }
    assert!(stream.land(&buffer, 40, 32, &mut landing).is_err(), "beyond the buffer");
    assert!(landing.wait().is_err(), "nobody knows what is there");
}

#[test]
fn a_kernel_computes_and_takes_only_its_own_parameters() {
    let fake = Fake::new("kernel");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let module = Module::load(&context, CUBIN).expect("it loads");
    let scale_add = module.function("scale_add").expect("it is there");
    let sums = module.function("block_sums").expect("it is there");
    let ones = bytes_of(&[1.0; 100]);
    let [to, from] = [(); 2].map(|()| Buffer::new(&context, ones.len()).expect("a buffer"));
    stream.write(&to, 0, &ones).expect("it fits");
    stream.write(&from, 0, &ones).expect("it fits");
    let whole = [
        Argument::Memory(&to, 0),
        Argument::Memory(&from, 0),
        Argument::F32(0.5),
        Argument::I32(100),
    ];
    scale_add.launch(&stream, Shape::line(2, 64), &whole).expect("it runs");
    let arguments = [Argument::Memory(&from, 0), Argument::Memory(&to, 0), Argument::I32(100)];
    sums.launch(&stream, Shape::line(2, 64), &arguments).expect("it runs");
    let mut back = [0; 8];
    stream.read(&from, 0, &mut back).expect("as many");
    assert_eq!(floats_of(&back), [1.5 * 64.0, 1.5 * 36.0]);

    let short = scale_add.launch(&stream, Shape::line(2, 64), &whole[..3]);
    let text = "cuLaunchKernel: scale_add takes bytes [8, 8, 4, 4], given are [8, 8, 4]";
    assert_eq!(short.expect_err("too few").to_string(), text);
    let far = [Argument::Memory(&to, 401), whole[1], whole[2], whole[3]];
    assert!(scale_add.launch(&stream, Shape::line(2, 64), &far).is_err());
    assert_eq!(module.function("none").err().and_then(|error| error.code()), Some(500));
    assert!(Module::load(&context, b"// text").is_err());
}

#[test]
fn too_much_memory_is_an_error_that_passes() {
    let fake = Fake::new("memory");
    let context = fake.context();
    let half = Buffer::new(&context, 1 << 29).expect("there is as much");
    let error = Buffer::new(&context, (1 << 29) + 1).err().expect("there is not as much");
    assert!(error.is_out_of_memory() && !error.ends_the_process(), "{error}");
    assert_eq!(error.to_string(), "cuMemAlloc: 2 CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    assert_eq!(context.memory_bytes(), Ok((1 << 29, 1 << 30)));
    drop(half);
    assert!(Buffer::new(&context, (1 << 29) + 1).is_ok());
}

#[test]
fn an_illegal_address_names_the_call_and_stays() {
    let fake = Fake::new("sticky");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let buffer = Buffer::new(&context, 8).expect("a buffer");
    fake.fail("cuStreamSynchronize=700@2");
    stream.write(&buffer, 0, &[1; 8]).expect("the first time nothing fails");
    let error = stream.write(&buffer, 0, &[1; 8]).expect_err("the second time it does");
    let text = "cuStreamSynchronize: 700 CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was \
                encountered)";
    assert_eq!(error.to_string(), text);
    assert!(error.ends_the_process());
    // Whoever else has the card has the same context.
    let other = Context::of(context.device()).expect("it is there");
    for context in [&context, &other] {
        let later = Event::new(context, Timing::On).err().expect("everything fails now");
        assert_eq!(later, error, "whatever is asked, the first one is told");
    }
    // What is dropped now is no panic, and asks for nothing.
}

#[test]
fn a_status_that_nobody_knows_is_a_number() {
    let fake = Fake::new("unknown");
    let context = fake.context();
    fake.fail("cuMemAlloc=987654");
    let error = Buffer::new(&context, 8).err().expect("it fails");
    assert_eq!((error.to_string(), error.code()), ("cuMemAlloc: 987654".into(), Some(987_654)));
    assert!(!error.ends_the_process());
}

#[test]
fn nothing_is_left_of_what_was_dropped() {
    let fake = Fake::new("dropped");
    let context = fake.context();
    let stream = Stream::new(&context).expect("a stream");
    let event = Event::new(&context, Timing::On).expect("an event");
    stream.record(&event).expect("recorded");
    assert_eq!(event.milliseconds_since(&event).map_err(|error| error.code()), Err(Some(600)));
    event.synchronize().expect("it happens");
    assert_eq!(event.milliseconds_since(&event), Ok(0.0));
    let (buffer, staging) = (Buffer::new(&context, 8), Staging::new(&context, 8));
    let (buffer, staging) = (buffer.expect("a buffer"), staging.expect("some memory"));
    // The context, a stream, an event, a buffer, pinned pages.
    assert_eq!(fake.live(), 5);
    drop(staging);
    assert_eq!(fake.live(), 4, "pages are given back as soon as nobody has them");
    drop((buffer, stream, event));
    assert_eq!(fake.live(), 1);
    drop(context);
    assert_eq!(fake.live(), 0);
}

#[test]
fn threads_share_a_context() {
    let fake = Fake::new("threads");
    let context = fake.context();
    std::thread::scope(|scope| {
        for number in 1..=4_u8 {
            let context = &context;
            scope.spawn(move || {
                let stream = Stream::new(context).expect("a stream");
                let buffer = Buffer::new(context, 64).expect("a buffer");
                let mut back = [0; 64];
                stream.write(&buffer, 0, &[number; 64]).expect("it fits");
                stream.read(&buffer, 0, &mut back).expect("as many");
                assert_eq!(back, [number; 64]);
            });
        }
    });
    context.synchronize().expect("nothing failed");
}

/// As a rank of the program meets it: by the loader's path, with failures from the environment.
#[test]
fn the_systems_driver_may_be_the_fake_one() {
    const VARIABLE: &str = "KINTSUGI_FAKE_CUDA";
    if std::env::var_os(VARIABLE).is_some() {
        let driver = Driver::open(None).expect("the loader finds it");
        let context = Context::of(&driver.devices().expect("it has one")[0]).expect("it is free");
        let error = Buffer::new(&context, 8).err().expect("it was told to fail");
        return assert!(error.is_out_of_memory(), "{error}");
    }
    let fake = Fake::new("system");
    let mut command = Command::new(std::env::current_exe().expect("the test program"));
    command.args(["--exact", "the_systems_driver_may_be_the_fake_one"]);
    let folder = fake.file().parent().expect("it lies in a folder").to_owned();
    let usual = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let path = std::env::join_paths([folder].into_iter().chain(std::env::split_paths(&usual)));
    command.env("LD_LIBRARY_PATH", path.expect("no colons")).env(VARIABLE, "cuMemAlloc=2");
    let ended = command.output().expect("it starts");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}
