//! Several ranks on the device: their gradients go through the memory of the machine, where one
//! device that is software is enough for them, or NCCL sums them.
#![cfg(unix)]

use std::process::Command;

use serde_json::Value;

#[cfg(feature = "cuda")]
use crate::common::fails;
use crate::common::ranks::Launcher;
#[cfg(feature = "cuda")]
use crate::common::skip::skip;
use crate::common::{relative_l2, succeeds, tensors};
use crate::{ONE_SHAPE, apart, losses, modes, on_device_settings};

/// A run by `ranks` ranks on the device, of a global batch of two micro-batches.
fn run(launcher: &Launcher, mode: &str, ranks: usize, name: &str, more: &[&str]) -> Command {
    let (settings, cache) = on_device_settings(mode);
    let settings = settings.iter().map(String::as_str).collect::<Vec<_>>();
    let set = ["--set", "batch.global_batch_size=6", "--set", "trainer.gradient_accumulation_steps=1"];
    let mut command = launcher.run(ranks, name, &[&settings[..], &ONE_SHAPE, &set, more].concat());
    command.env("KILN_CACHE", cache).env("FAKE_CUDA_DEVICES", "2");
    command
}

/// Whether two ranks have their devices: one that is software is enough for both, and of CUDA's
/// each has its own.
fn has_two_devices() -> bool {
    #[cfg(feature = "cuda")]
    if crate::device() == "cuda" && std::env::var_os("FAKE_NCCL").is_none() {
        cudarc::driver::result::init().unwrap();
        let count = cudarc::driver::result::device::get_count().unwrap();
        if count < 2 {
            skip!("devices", "two ranks need two CUDA devices, and there are {count}");
            return false;
        }
    }
    true
}

/// Two ranks with one micro-batch each compute what one with two does, with dropout and clipping:
/// to the bit where their sums are the only difference, and up to rounding where the gradient norm
/// is added up parameter by parameter or the backward pass goes in parts. A rank without a
/// micro-batch ends each epoch.
#[test]
fn two_ranks_train_what_one_does() {
    if !has_two_devices() {
        return;
    }
    let run = |launcher: &Launcher, mode: &str, ranks: usize, name: &str, more: &[&str]| {
        run(launcher, mode, ranks, name, &[&["--set", "distributed.ddp_backend=mpi"], more].concat())
    };
    for mode in modes() {
        let Some(launcher) = Launcher::of("clm") else { return };
        let path = |run: &str| launcher.folder().join(run);
        succeeds(&mut run(&launcher, mode, 1, "one", &[]));
        let difference = |other: &str, one: &str| {
            let apart = apart(&losses(&path(other)), &losses(&path(one)));
            let weights = |run: &str| {
                let all = tensors(&path(run).join("model/model.safetensors"));
                all.into_values().flat_map(|(_, values)| values).collect::<Vec<_>>()
            };
            let weights = relative_l2(&weights(other), &weights(one));
            println!("{mode}, {other}: losses {apart:.1e}, weights {weights:.1e}");
            f64::max(apart, weights)
        };

        let said = succeeds(run(&launcher, mode, 2, "two", &[]).arg("--step-times"));
        assert!(said.contains("6 = 3 x 1 micro-batch x 2 devices"), "{said}");
        let is_captured = said.contains("is captured (");
        assert_eq!(is_captured, mode == "compiled", "{said}");
        assert_eq!(difference("two", "one"), 0.0);
        let steps = std::fs::read_to_string(path("two/steps.jsonl")).unwrap();
        for line in steps.lines() {
            let step: Value = serde_json::from_str(line).unwrap();
            // All gradients and the loss in one, the norm that an eager step agrees on, and the
            // row's.
            let reads = if is_captured { 2 } else { 3 };
            assert_eq!(step["device_reads"], reads, "{step}");
            assert!(step["communicate_ms"].as_f64().unwrap() > 0.0, "{step}");
        }

        // A captured step draws its dropout in its own way, so steps that are not captured are
        // compared with such ones.
        let eager: &[&str] = if is_captured { &["--set", "compiler.graph=off"] } else { &[] };
        let one = if is_captured { "eager" } else { "one" };
        if is_captured {
            succeeds(&mut run(&launcher, mode, 1, "eager", eager));
            succeeds(&mut run(&launcher, mode, 2, "eager-two", eager));
            assert_eq!(difference("eager-two", one), 0.0);
        }
        for (name, setting) in [("divided", "optimizer_sharding"), ("overlapping", "overlap_communication")] {
            let setting = format!("distributed.{setting}=true");
            let said = succeeds(&mut run(&launcher, mode, 2, name, &["--set", &setting]));
            assert!(!said.contains("is captured ("), "{said}");
            assert!(difference(name, one) < 1e-5);
        }

        // From two ranks to one and back, once with a divided optimizer.
        let divided = ["--set", "distributed.optimizer_sharding=true"];
        for (name, ranks, from, to, one) in [
            ("2-1", [2, 1], &[][..], &[][..], "one"),
            ("1-2", [1, 2], &[][..], &[][..], "one"),
            ("divided-1", [2, 1], &divided[..], eager, one),
        ] {
            succeeds(&mut run(&launcher, mode, ranks[0], name, &[from, &["--stop-after", "5"]].concat()));
            let said = succeeds(&mut run(&launcher, mode, ranks[1], name, &[to, &["--resume"]].concat()));
            assert!(said.contains("continuing after step 5"), "{said}");
            let difference = difference(name, one);
            assert!(if from.is_empty() { difference == 0.0 } else { difference < 1e-5 }, "{difference}");
        }
    }
}

/// An NCCL that sums where Kiln computes: the stand-in for the emulated devices
/// (`tests/fake-cuda/nccl.cpp`), or NVIDIA's on a machine that has a GPU, where there is no
/// stand-in.
#[cfg(feature = "cuda")]
fn stand_in() -> Option<std::ffi::OsString> {
    let found = std::env::var_os("FAKE_NCCL");
    if found.is_none() {
        skip!("emulation", "no emulated NCCL: FAKE_NCCL names that of tests/fake-cuda");
    }
    found
}

/// Two CUDA devices, each with a rank: NCCL sums what MPI sums, to the bit, in eager and in
/// captured steps.
#[test]
#[cfg(feature = "cuda")]
fn nccl_sums_what_mpi_sums() {
    let Some(nccl) = stand_in() else { return };
    for mode in modes() {
        let Some(launcher) = Launcher::of("clm") else { return };
        let two = |name: &str, more: &[&str]| {
            let few = ["--set", "trainer.max_steps=3", "--set", "trainer.eval_strategy=no"];
            let mut command = run(&launcher, mode, 2, name, &[&few, more].concat());
            command.env("KILN_NCCL", &nccl);
            command
        };
        let by_mpi = ["--set", "distributed.ddp_backend=mpi"];
        let said = succeeds(two("staged", &by_mpi).env("KILN_NCCL", "/nowhere"));
        assert!(said.contains("MPI sums the gradients of the devices in the memory of the machine"), "{said}");
        let said = succeeds(&mut two("nccl", &[]));
        assert!(said.contains("NCCL sums the gradients of the devices where they lie"), "{said}");
        let expected = format!("gradients are summed by NCCL 2.27.3 ({})", nccl.to_string_lossy());
        assert!(said.contains(&expected), "{said}");
        for file in ["model/model.safetensors", "checkpoints/step-000003/optimizer.safetensors"] {
            let bytes = |run: &str| launcher.bytes(&format!("{run}/{file}"));
            assert!(bytes("staged") == bytes("nccl"), "{mode}: {file}");
        }
    }
}

/// A run without NCCL is refused and writes nothing; one whose NCCL fails ends on all ranks,
/// whatever the others wait for.
#[test]
#[cfg(feature = "cuda")]
fn an_nccl_that_lacks_or_fails_ends_the_run() {
    let (Some(nccl), Some(launcher)) = (stand_in(), Launcher::of("clm")) else { return };
    let two = |more: &[&str]| {
        let mut command = run(&launcher, crate::MODE, 2, "run", more);
        command.env("KILN_NCCL", &nccl);
        command
    };
    let advice = ["name its library", "distributed.ddp_backend = \"mpi\""];
    let none = [&advice[..], &["no NCCL was found", "libnccl.so.2: ", "libnccl.so: "]].concat();
    fails(two(&[]).env_remove("KILN_NCCL"), 2, &none);
    let nowhere = [&advice[..], &["KILN_NCCL = \"/nowhere\" cannot be used"]].concat();
    fails(two(&[]).env("KILN_NCCL", "/nowhere"), 2, &nowhere);
    fails(two(&[]).env("KILN_NCCL", "libc.so.6"), 2, &["it has no ncclGetVersion"]);
    fails(two(&[]).env("FAKE_NCCL_VERSION", "2307"), 2, &["it is NCCL 2.3.7, and expected is 2.4.0 or later"]);
    fails(two(&[]).env("NCCL_COMM_BLOCKING", "0"), 2, &["ncclCommInitRank", "set NCCL_COMM_BLOCKING=1"]);
    let divided = ["--set", "distributed.ddp_backend=nccl", "--set", "distributed.overlap_communication=true"];
    fails(&mut two(&divided), 2, &["distributed.ddp_backend", "set it to \"mpi\", or the other key to false"]);
    assert!(!launcher.folder().join("run").exists());

    succeeds(&mut two(&["--set", "trainer.max_steps=3"])); // compiles
    let failing = |how: &str, code: i32, parts: &[&str]| {
        let began = std::time::Instant::now();
        let more = ["--set", "run.on_existing=overwrite"];
        // The first sum is made at the start. A wait for a rank that compiles kernels is shorter.
        fails(two(&more).env("FAKE_NCCL_FAIL", format!("{how}:3")).env("KILN_MPI_TIMEOUT", "40"), code, parts);
        println!("{how}: {:.1} s", began.elapsed().as_secs_f64());
    };
    failing("error", 7, &["ncclAllReduce", "unhandled system error (2)", "NCCL_DEBUG=INFO"]);
    failing("later", 7, &["ncclAllReduce", "remote process exited or there was a network error (6)"]);
    // Rank 0 hears of it from NCCL before rank 1 says why.
    failing("memory", 4, &["the device ran out of memory", "unhandled cuda error (1)"]);
    failing("kill", 137, &["rank 1 was ended by SIGKILL"]);
    failing("wait", 7, &["the other ranks have not answered for 40 s"]);
}

/// NCCL in a world of one gives gradients and loss back as they are: all of it that a machine with
/// one GPU can run.
#[test]
#[cfg(feature = "cuda")]
fn nccl_of_one_rank_gives_back_what_it_gets() {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor, TensorData};
    use kiln::distributed::{World, sum_gradients};

    if std::env::var_os("FAKE_NCCL").is_some() && std::env::var_os("KILN_NCCL").is_none() {
        // Another process has the variable that is read where the library is looked for.
        let own = std::env::current_exe().unwrap();
        let mut again = Command::new(own);
        again.args(["--exact", "ranks::nccl_of_one_rank_gives_back_what_it_gets", "--nocapture"]);
        succeeds(again.env("KILN_NCCL", std::env::var_os("FAKE_NCCL").unwrap()));
        return;
    }
    /// A parameter of more values than a buffer has, and small ones.
    #[derive(Module, Debug)]
    struct Parameters {
        first: Param<Tensor<1>>,
        large: Param<Tensor<2>>,
        without: Param<Tensor<1>>,
        last: Param<Tensor<3>>,
        /// The parameter of `first` once more.
        first_again: Param<Tensor<1>>,
    }
    struct Read(GradientsParams, Vec<Option<Vec<f32>>>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.0.remove::<D>(param.id);
            self.1.push(grad.map(|grad| grad.into_data().try_to_vec().unwrap()));
        }
    }
    let device = Device::cuda(0);
    let learning = device.clone().autodiff();
    let first = Param::from_tensor(Tensor::ones([5], &learning));
    let parameters = Parameters {
        first_again: first.clone(),
        first,
        large: Param::from_tensor(Tensor::ones([4097, 4096], &learning)),
        without: Param::from_tensor(Tensor::ones([7], &learning)),
        last: Param::from_tensor(Tensor::ones([2, 3, 3], &learning)),
    };
    let values = |len: usize| (0..len).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
    let gradients = || {
        let mut grads = GradientsParams::new();
        grads.register(parameters.first.id, Tensor::<1>::from_data(TensorData::new(values(5), [5]), &device));
        let large = TensorData::new(values(4097 * 4096), [4097, 4096]);
        grads.register(parameters.large.id, Tensor::<2>::from_data(large, &device));
        grads.register(parameters.last.id, Tensor::<3>::from_data(TensorData::new(values(18), [2, 3, 3]), &device));
        grads
    };
    let read = |grads: GradientsParams| {
        let mut read = Read(grads, Vec::new());
        parameters.visit(&mut read);
        read.1
    };
    let world = match World::alone().with_nccl(0) {
        Err(error) if std::env::var_os("KILN_NCCL").is_none() && error.kind() == kiln::ErrorKind::Config => {
            return skip!("nccl", "{error}");
        }
        world => world.unwrap(),
    };
    println!("{}", world.nccl().unwrap());
    let loss = Tensor::<1>::from_floats([0.125f32], &device);
    let (summed, loss) = sum_gradients(&world, &parameters, gradients(), Some(loss), &device).unwrap();
    let (expected, summed) = (read(gradients()), read(summed));
    assert_eq!(expected.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, true, false]);
    assert!(summed == expected);
    assert_eq!(loss.into_data().try_to_vec::<f32>().unwrap(), [0.125]);
}
