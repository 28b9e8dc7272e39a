//! Runs of several ranks: `kiln launch` with the mpirun that is installed.
#![cfg(unix)]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::ranks::{Launcher, accumulate, all, mpirun, same};
use crate::common::skip::skip;
use crate::common::small_run::{figures, train, write};
use crate::common::{fails, kiln, relative_l2, rows_with_skips, succeeds, tensors, text};

/// Every task, with dropout, clipping, label counts that differ by rank, and a rank without a batch
/// at the end of each epoch.
#[test]
fn two_ranks_train_what_one_does() {
    for task in ["clm", "mlm", "sequence-classification", "regression", "question-answering"] {
        let Some(launcher) = Launcher::of(task) else { return };
        let folder = launcher.folder();
        let clip = ["--set", "trainer.max_grad_norm=0.5"];
        succeeds(&mut launcher.alone("one", &all(&accumulate(2), &clip)));
        let said = succeeds(&mut launcher.launch(2, "two", &all(&accumulate(1), &clip)));
        launcher.same("one", "two");
        assert!(said.contains("6 = 3 x 1 micro-batch x 2 devices"), "{said}");
        assert_eq!(said.matches("'train_runtime'").count(), 1, "rank 0 alone talks: {said}");
        assert_eq!(std::fs::read_dir(folder.join("two/ranks")).unwrap().count(), 1);
        let log = std::fs::read_to_string(folder.join("two/ranks/1.log")).unwrap();
        assert!(log.contains("'loss'"), "{log}");
    }
}

#[test]
fn in_compiled_mode_and_in_f16_too() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let folder = launcher.folder();
    for (name, more) in [("compiled", ["--compiler", "compiled"]), ("f16", ["--precision", "f16"])] {
        let (one, two) = (format!("{name}-one"), format!("{name}-two"));
        succeeds(&mut launcher.alone(&one, &all(&accumulate(2), &more)));
        succeeds(&mut launcher.launch(2, &two, &all(&accumulate(1), &more)));
        let weights = |run: &str| launcher.bytes(&format!("{run}/model/model.safetensors"));
        assert!(weights(&one) == weights(&two), "{name}");
        let rows = |run: &str| {
            let rows = rows_with_skips(&folder.join(run));
            rows.iter().map(|row| format!("{:?} {:?}", row.get("loss"), row.get("found_inf"))).collect::<Vec<_>>()
        };
        assert_eq!(rows(&one), rows(&two));
    }
}

const DIVIDED: [&str; 2] = ["--set", "distributed.optimizer_sharding=true"];

/// The update of each value is made by one rank; every optimizer, mode and precision, with
/// clipping.
#[test]
fn a_divided_optimizer_gives_the_bits_of_a_whole_one() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let folder = launcher.folder();
    let clip = ["--set", "trainer.max_grad_norm=0.5"];
    let adamw = ["--set", "trainer.optim=\"adamw_torch\""];
    let sgd = ["--set", "trainer.optim=\"sgd\"", "--set", "trainer.optim_args=\"momentum=0.9\""];
    let cases: [(&str, &[&str]); 6] = [
        ("adamw", &adamw),
        ("compiled", &["--compiler", "compiled"]),
        ("sgd", &sgd),
        ("lion", &["--set", "trainer.optim=\"lion\""]),
        ("f16", &["--precision", "f16"]),
        ("layers", &["--set", "trainer.freeze=[\"transformer.wte.*\"]"]),
    ];
    for (name, more) in cases {
        let more = [&clip[..], more].concat();
        let (one, two) = (format!("{name}-one"), format!("{name}-two"));
        succeeds(&mut launcher.alone(&one, &all(&accumulate(2), &more)));
        let said = succeeds(&mut launcher.launch(2, &two, &all(&accumulate(1), &[&more[..], &DIVIDED].concat())));
        assert!(said.contains("divided among 2 devices"), "{said}");
        launcher.same(&one, &two);
    }
    // Three parts, of which none begins with a parameter.
    let set = ["--set", "batch.global_batch_size=9", "--set", "trainer.gradient_accumulation_steps=1"];
    succeeds(&mut launcher.alone("nine", &set));
    succeeds(&mut launcher.launch(3, "three", &[&set[..], &DIVIDED].concat()));
    launcher.same("nine", "three");

    for (optim, needs) in [("adafactor", "rows and columns"), ("lamb", "the norms"), ("muon", "a whole matrix")] {
        let optim = format!("trainer.optim=\"{optim}\"");
        let mut refused = launcher.launch(2, "no", &[&["--set", &optim][..], &DIVIDED].concat());
        fails(&mut refused, 2, &["distributed.optimizer_sharding = true with trainer.optim", needs, "element-wise"]);
    }
    assert!(!folder.join("no").exists());
}

/// Checkpoints are those of a whole optimizer: any number of ranks continues them, divided or not.
#[test]
fn a_divided_optimizer_is_saved_whole() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let set = ["--set", "batch.global_batch_size=6", "--set", "trainer.gradient_accumulation_steps=1"];
    succeeds(&mut launcher.alone("straight", &set));
    let run = |(ranks, divided): (usize, bool), run: &str, more: &[&str]| {
        let divided: &[&str] = if divided { &DIVIDED } else { &[] };
        succeeds(&mut launcher.run(ranks, run, &[&set[..], divided, more].concat()))
    };
    for (index, (before, after)) in
        [((2, true), (1, false)), ((1, true), (2, true)), ((2, true), (2, false)), ((2, false), (2, true))]
            .into_iter()
            .enumerate()
    {
        let name = format!("run-{index}");
        run(before, &name, &["--stop-after", "5"]);
        run(after, &name, &["--resume"]);
        launcher.same("straight", &name);
    }
}

/// Half the moments of a rank are gone from its plan, from its tensors, and from the largest memory
/// of its process.
#[test]
#[cfg(target_os = "linux")]
fn a_divided_optimizer_has_half_the_moments() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let folder = launcher.folder();
    // 16.8 million parameters, nearly all of them positions: 128 MiB of moments.
    let large = ["--set", "model.n_positions=262144", "--set", "model.n_embd=64", "--set", "trainer.eval_strategy=no"];
    let few = ["--set", "trainer.save_strategy=no", "--set", "trainer.max_steps=4"];
    let found = [("whole", &[][..]), ("divided", &DIVIDED[..])].map(|(run, more)| {
        let said = succeeds(&mut launcher.launch(2, run, &all(&accumulate(1), &[&large[..], &few, more].concat())));
        let planned = said.lines().find(|line| line.starts_with("memory ")).unwrap().to_owned();
        let peak = crate::common::train_rows(&folder.join(run)).last().unwrap()["peak_mib"].as_f64().unwrap();
        let held = ["run.log", "ranks/1.log"].map(|log| {
            let log = std::fs::read_to_string(folder.join(run).join(log)).unwrap();
            let (_, values) = log.split_once("the optimizer of this rank holds ").unwrap();
            values.split(' ').next().unwrap().replace(',', "").parse::<usize>().unwrap()
        });
        println!("{run}: rank 0 and 1 hold {held:?} values; largest memory of rank 0 {peak} MiB; {planned}");
        (planned, peak, held)
    });
    let [(whole, peak_whole, [all, same]), (divided, peak_divided, halves)] = found;
    assert!(whole.contains("optimizer 129 MiB") && divided.contains("optimizer 64 MiB"), "{whole} {divided}");
    assert!(all == same && all > 2 * 16_800_000, "{all} {same}");
    assert_eq!(halves[0] + halves[1], all);
    assert!(halves[0].abs_diff(halves[1]) <= 2, "{halves:?}");
    // 64 MiB of moments less. Of them MPI's buffers have taken up to 33, where the other rank came
    // later to an exchange.
    let less = peak_whole - peak_divided;
    assert!(less > 30.0, "{less} MiB less");
}

/// Gradients that are summed during the backward pass, with tied weights, layers that are computed
/// again, frozen embeddings and ranks that have no micro-batch at the end of an epoch.
#[test]
fn sums_during_the_backward_pass_are_those_after_it() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let cases: [(&str, &[&str]); 6] = [
        ("native", &[]),
        ("compiled", &["--compiler", "compiled"]),
        ("f16", &["--precision", "f16"]),
        ("blocks", &["--set", "trainer.activation_checkpointing=blocks"]),
        ("balanced", &["--set", "trainer.activation_checkpointing=balanced"]),
        ("frozen", &["--set", "trainer.freeze=[\"transformer.wte.*\"]"]),
    ];
    for (name, more) in cases {
        let (after, during) = (format!("{name}-after"), format!("{name}-during"));
        succeeds(&mut launcher.launch(2, &after, &all(&accumulate(2), more)));
        let overlap = [more, &["--set", "distributed.overlap_communication=true"]].concat();
        succeeds(&mut launcher.launch(2, &during, &all(&accumulate(2), &overlap)));
        launcher.same(&after, &during);
    }
    let both = [&DIVIDED[..], &["--set", "distributed.overlap_communication=true"]].concat();
    fails(&mut launcher.launch(2, "no", &both), 2, &["distributed.overlap_communication", "set one of them"]);
}

/// The order in which ranks are summed is that of the micro-batches where each has one; with more,
/// rounding differs.
#[test]
fn four_micro_batches_are_shared_in_any_way() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let folder = launcher.folder();
    let set = ["--set", "batch.global_batch_size=12", "--set", "trainer.gradient_accumulation_steps=1"];
    succeeds(&mut launcher.alone("one", &set));
    succeeds(&mut launcher.launch(4, "four", &set));
    launcher.same("one", "four");
    succeeds(&mut launcher.launch(2, "two", &set));
    let [one, two] = ["one", "two"].map(|run| tensors(&folder.join(run).join("model/model.safetensors")));
    let values = |of: &std::collections::BTreeMap<String, (Vec<usize>, Vec<f32>)>| {
        of.values().flat_map(|(_, values)| values.clone()).collect::<Vec<_>>()
    };
    let difference = relative_l2(&values(&two), &values(&one));
    assert!(difference < 1e-6, "{difference}");
}

#[test]
fn a_run_continues_with_another_number_of_ranks() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let set = ["--set", "batch.global_batch_size=6", "--set", "trainer.gradient_accumulation_steps=1"];
    succeeds(&mut launcher.alone("straight", &set));
    let run = |ranks, run: &str, more: &[&str]| succeeds(&mut launcher.run(ranks, run, &[&set[..], more].concat()));
    for (before, after) in [(2, 1), (1, 2), (2, 2)] {
        let name = format!("from-{before}-to-{after}");
        run(before, &name, &["--stop-after", "5"]);
        let said = run(after, &name, &["--resume"]);
        assert!(said.contains("continuing after step 5"), "{said}");
        launcher.same("straight", &name);
        let said = run(2, &name, &["--resume"]);
        assert!(said.contains("nothing to continue"), "{said}");
    }
}

#[test]
fn what_is_no_world_is_refused_and_nothing_is_written() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "sequence-classification");
    let of = |variables: &[(&str, &str)]| {
        let mut command = train(folder, "run", &[]);
        command.envs(variables.iter().copied());
        command
    };
    let ranks = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let nowhere = [&ranks[..], &[("KILN_MPI", "/nowhere/libmpi.so.40")]].concat();
    let parts =
        ["OMPI_COMM_WORLD_SIZE = 2", "KILN_MPI = \"/nowhere/libmpi.so.40\" cannot be loaded", "apt-get install"];
    fails(&mut of(&nowhere), 2, &parts);
    let no_mpi = [&ranks[..], &[("KILN_MPI", "libc.so.6")]].concat();
    fails(&mut of(&no_mpi), 2, &["libc.so.6 has no MPI_Init_thread"]);
    fails(&mut of(&[("RANK", "2"), ("WORLD_SIZE", "2")]), 2, &["RANK = 2, WORLD_SIZE = 2"]);
    let missing_half = [("WORLD_SIZE", "2")];
    fails(&mut of(&missing_half), 2, &["WORLD_SIZE is set and RANK is not"]);
    let two_worlds = [&ranks[..], &[("RANK", "1"), ("WORLD_SIZE", "4")]].concat();
    fails(&mut of(&two_worlds), 2, &["tell of another world than RANK = 1, WORLD_SIZE = 4"]);
    let hosts = [("SM_HOSTS", "[\"algo-1\",\"algo-2\"]"), ("SM_CURRENT_HOST", "algo-2")];
    fails(&mut of(&hosts), 2, &["SM_HOSTS names 2 machines (algo-1, algo-2)", "kiln launch -n N", "on algo-1"]);
    fails(&mut of(&hosts[..1]), 2, &["SM_HOSTS is set and SM_CURRENT_HOST is not"]);
    let mut second = kiln(folder);
    second.args(["launch", "-n", "2", "--", "train", "config.toml"]).envs(hosts);
    fails(&mut second, 2, &["SM_CURRENT_HOST = algo-2: `kiln launch` is for algo-1"]);
    for alone in [
        &["compare", "config.toml"][..],
        &["tune-batch", "config.toml"],
        &["verify-resume", "config.toml"],
        &["sweep", "config.toml"],
        &["predict", "model", "--input", "data.jsonl"],
        &["job", "--root", "."],
        &["report", "run"],
        &["init", "clm", "gpt2"],
        &["runs"],
    ] {
        let mut command = kiln(folder);
        fails(command.args(alone).envs(ranks), 2, &[&format!("kiln {} works in one process", alone[0]), "kiln launch"]);
    }
    fails(kiln(folder).args(["launch", "--", "train", "config.toml"]), 2, &["expected the number of processes"]);
    let mut unknown = kiln(folder);
    fails(
        unknown.args(["launch", "-n", "2", "--mpirun", "false", "--", "devices"]),
        2,
        &["the mpirun of Open MPI or MPICH"],
    );
    assert!(!folder.join("run").exists());

    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let three = ["--set", "batch.global_batch_size=9", "--set", "trainer.gradient_accumulation_steps=1"];
    fails(&mut launcher.launch(2, "run", &three), 2, &["no multiple of", "3 x 2 devices"]);
    let nccl = ["--set", "distributed.ddp_backend=nccl"];
    fails(&mut launcher.launch(2, "run", &nccl), 2, &["NCCL sums the gradients of CUDA devices", "computes on cpu"]);
    let missing = ["--set", "data.train=missing.jsonl"];
    fails(&mut launcher.launch(2, "run", &missing), 2, &["missing.jsonl"]);
    assert!(!launcher.folder().join("run").exists());
}

/// A library that has MPI's functions and is none that Kiln knows how to call, one that is not
/// built for threads, or one that ends the process, as Open MPI does where it finds no launcher
/// that it was built for.
#[test]
fn an_unknown_mpi_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "sequence-classification");
    let functions =
        ["Comm_size", "Comm_rank", "Comm_set_errhandler", "Alltoall", "Allgather", "Ialltoall", "Iallgather"];
    let functions = [&functions[..], &["Test", "Gather", "Bcast", "Abort", "Finalize"]].concat();
    let functions = functions
        .iter()
        .map(|name| format!("int MPI_{name}() {{ if (ends) exit(5); return 0; }}\n"))
        .collect::<String>();
    let headers = ["stdlib.h", "string.h", "sys/resource.h"].map(|name| format!("#include <{name}>\n")).concat();
    let source = format!(
        "{headers}static int ends;\nint MPI_Get_library_version(char *text, int *length) {{ strcpy(text, NAME); return 0; }}\nint \
         MPI_Init_thread(int *c, char ***v, int asked, int *provided) {{ *provided = 1; ENDS; return 0; }}\n{functions}"
    );
    std::fs::write(folder.join("stub.c"), source).unwrap();
    let mpich = "MPICH Version:\\t9.9\\nDate: today";
    let compile = |name: &str, ends: &str| {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o", "libstub.so", "stub.c", &format!("-DNAME=\"{name}\"")]);
        let output = cc.arg(format!("-DENDS={ends}")).current_dir(folder).output().ok()?;
        assert!(output.status.success(), "{}", text(&output));
        let mut command = train(folder, "run", &[]);
        command.env("KILN_MPI", folder.join("libstub.so")).env("PMI_RANK", "0").env("PMI_SIZE", "2");
        Some(command)
    };
    for (name, ends, parts) in [
        ("Some MPI 7.1, of 2026", "", ["it calls itself \"Some MPI 7.1\"", "expected is Open MPI"]),
        (mpich, "", ["MPICH Version: 9.9", "provides MPI_THREAD_FUNNELED"]),
        (mpich, "exit(1)", ["the MPI library has ended this process while it started", "srun --mpi=pmix"]),
    ] {
        let Some(mut command) = compile(name, ends) else { return skip!("cc", "no C compiler: install gcc") };
        fails(&mut command, 2, &parts);
    }
    // One that ends the process later ends it with its own code.
    let output = compile(mpich, "*provided = 2; ends = 1").unwrap().output().unwrap();
    assert!(output.status.code() == Some(5) && !text(&output).contains("while it started"), "{}", text(&output));
    // A fault that is not at the stack is one, without memory too.
    let fault = "struct rlimit none = {1, 1}; setrlimit(RLIMIT_AS, &none); *(volatile int *)0 = 1";
    let output = compile(mpich, fault).unwrap().output().unwrap();
    assert!(cfg!(not(target_arch = "x86_64")) || output.status.signal() == Some(11), "{}", text(&output));
    assert!(!folder.join("run").exists());
}

/// There is no Slurm here: the variables of a step stand for an srun that starts no MPI.
#[test]
fn srun_without_mpi_is_refused_with_the_way_out() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    write(folder, "sequence-classification");
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOBID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEPID", "0"),
        ("SLURM_NODELIST", "localhost"),
    ];
    let mut command = train(folder, "run", &[]);
    fails(command.envs(step), 2, &["SLURM_STEP_NUM_TASKS = 2 tell of 2 ranks", "srun --mpi=pmix"]);
    assert!(!folder.join("run").exists());
}

/// Each rank has a part of the global batch: the size that fits is asked for that.
#[test]
fn a_batch_that_is_looked_for_is_that_of_a_device() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let set = [
        "batch.global_batch_size=12",
        "trainer.gradient_accumulation_steps=1",
        "trainer.per_device_train_batch_size=auto",
    ];
    let set = set.iter().flat_map(|setting| ["--set", *setting]).collect::<Vec<_>>();
    let said = succeeds(&mut launcher.launch(2, "run", &[&set[..], &["--stop-after", "3"]].concat()));
    assert!(said.contains("12 = 6 x 1 micro-batch x 2 devices") && said.contains("shared by 2 ranks"), "{said}");
    assert_eq!(said.matches("looking for one").count(), 1, "{said}");
    // A run that goes on keeps its size, on the ranks that have no run folder, too.
    let said = succeeds(&mut launcher.launch(2, "run", &[&set[..], &["--resume"]].concat()));
    assert!(said.contains("continuing after step 3") && !said.contains("looking for one"), "{said}");
}

/// The answer of one rank is that of all.
#[test]
fn modes_are_tried_and_verified_by_rank_0_for_all() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let folder = launcher.folder();
    let said = succeeds(&mut launcher.launch(2, "auto", &all(&accumulate(1), &["--compiler", "auto"])));
    assert_eq!(said.matches("compiler auto: trying both modes").count(), 1, "{said}");
    let verified = ["--compiler", "compiled", "--set", "compiler.verify=7"];
    succeeds(&mut launcher.launch(2, "verified", &all(&accumulate(1), &verified)));
    for log in ["verified/run.log", "verified/ranks/1.log"] {
        let log = std::fs::read_to_string(folder.join(log)).unwrap();
        for part in ["verify before step 1: native and compiled compute the same", "verify after step 14: native"] {
            assert_eq!(log.matches(part).count(), 1, "{part} in {log}");
        }
    }
}

/// The processes that train in `folder`: their rank and process id.
fn ranks_in(folder: &Path) -> Vec<(usize, u32)> {
    let folder = folder.canonicalize().unwrap();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let is_here = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder);
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let rank = environment
            .split('\0')
            .find_map(|it| ["OMPI_COMM_WORLD_RANK=", "PMI_RANK="].iter().find_map(|name| it.strip_prefix(name)));
        if let (true, Some(rank)) = (is_here, rank.and_then(|rank| rank.parse().ok())) {
            found.push((rank, pid));
        }
    }
    found
}

fn send(signal: &str, pid: u32) {
    let _ = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
}

/// How a launcher ended that had to, within ten seconds and with all its ranks.
fn ended(mut child: Child, folder: &Path) -> Option<i32> {
    let asked = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        assert!(asked.elapsed() < Duration::from_secs(10), "it has not ended");
        std::thread::sleep(Duration::from_millis(20));
    };
    while !ranks_in(folder).is_empty() {
        assert!(asked.elapsed() < Duration::from_secs(10), "ranks are left: {:?}", ranks_in(folder));
        std::thread::sleep(Duration::from_millis(50));
    }
    code
}

/// Waits until `ready`.
fn until(what: &str, ready: impl Fn() -> bool) {
    let asked = Instant::now();
    while !ready() {
        assert!(asked.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Four times here; `KILN_KILLS=100` for more.
#[test]
fn a_rank_that_is_killed_ends_all_and_the_run_continues() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let folder = launcher.folder();
    let kills = std::env::var("KILN_KILLS").map_or(4, |kills| kills.parse::<u32>().unwrap());
    let steps = format!("trainer.max_steps={}", 60 * kills);
    let set = ["--set", "trainer.save_steps=1", "--set", "trainer.save_total_limit=3", "--set", &steps];
    let more = all(&accumulate(2), &set).into_iter().map(str::to_owned).collect::<Vec<_>>();
    succeeds(&mut launcher.alone("straight", &all(&more, &[])));
    let more = all(&accumulate(1), &set).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    for kill in 0..kills {
        let mut command = launcher.launch(2, "run", &all(&more, &["--set", "run.on_existing=resume"]));
        let said = std::fs::File::create(folder.join("said")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        until("no ranks were started", || ranks_in(folder).len() == 2);
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_millis(u64::from(random >> 16) % 1000));
        let victim = kill as usize % 2;
        let victim = ranks_in(folder).into_iter().find(|(rank, _)| *rank == victim);
        if let Some((_, pid)) = victim {
            send("-KILL", pid);
        }
        let code = ended(child, folder);
        assert!(code == Some(137) || victim.is_none() || code == Some(0), "{code:?}");
        let said = std::fs::read_to_string(folder.join("said")).unwrap();
        if code == Some(137) {
            // Hydra does not tell which.
            let ended = [
                format!("error: rank {} was ended by SIGKILL", kill % 2),
                "error: a rank was ended by SIGKILL".into(),
                // Open MPI can wait for ever for a rank that was killed while it connected.
                "error: the ranks have ended without a word, and mpirun has not".into(),
            ];
            assert!(ended.iter().any(|ended| said.contains(ended)), "{said}");
            // A rank that is killed while MPI begins can leave the other one a notice about their
            // shared memory, which stays.
            for notice in ["exited on signal", "non-zero status", "MPI_ABORT", "Primary job"] {
                assert!(!said.contains(notice), "mpirun's own notices of the end are left out: {said}");
            }
        }
    }
    // Where every kill came before the first checkpoint, --resume would have nothing to continue.
    succeeds(&mut launcher.launch(2, "run", &all(&more, &["--set", "run.on_existing=resume"])));
    assert_eq!(figures(&folder.join("straight")), figures(&folder.join("run")));
    let weights = |run: &str| launcher.bytes(&format!("{run}/model/model.safetensors"));
    assert!(weights("straight") == weights("run"));
}

/// Memory that a rank cannot get ends all ranks with exit code 4 and says so, and the run continues
/// from a checkpoint that is whole. Three moments here; `KILN_CUTS=40` for more.
#[cfg(target_os = "linux")]
#[test]
fn a_rank_without_memory_ends_all_and_the_run_continues() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    if Command::new("prlimit").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip!("prlimit", "no prlimit: install util-linux");
    }
    let folder = launcher.folder();
    let cuts = std::env::var("KILN_CUTS").map_or(3, |cuts| cuts.parse::<u32>().unwrap());
    let steps = format!("trainer.max_steps={}", 60 * (cuts + 1));
    let set = ["--set", "trainer.save_steps=1", "--set", "trainer.save_total_limit=3", "--set", &steps];
    succeeds(&mut launcher.alone("straight", &all(&accumulate(2), &set)));
    let more = all(&accumulate(1), &set).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let launched = |limit: u32| {
        let run = launcher.launch(2, "run", &all(&more, &["--set", "run.on_existing=resume"]));
        let mut command = Command::new("sh");
        let limit = if limit > 0 { format!("ulimit -v {};", limit << 10) } else { String::new() };
        command.args(["-c", &(limit + " exec \"$0\" \"$@\"")]).arg(run.get_program()).args(run.get_args());
        command.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(folder);
        let said = std::fs::File::create(folder.join("said")).unwrap();
        command.stdout(Stdio::null()).stderr(said).spawn().unwrap()
    };
    let said = || std::fs::read_to_string(folder.join("said")).unwrap();
    // Too little for an mpirun: none is started.
    for limit in [80, 100, 120] {
        assert_eq!(ended(launched(limit), folder), Some(4), "{limit} MiB: {}", said());
        assert!(said().contains("error: MPI, which takes up to 96 MiB, cannot start: the system has no more memory"));
        assert_eq!(said().lines().count(), 2, "{limit} MiB: {}", said());
    }
    assert!(!folder.join("run").exists());
    let mut random = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
    let newest = || {
        let names = std::fs::read_dir(folder.join("run/checkpoints")).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name()).filter(|name| !name.to_string_lossy().starts_with('.')).max()
    };
    for cut in 0..cuts {
        let before = newest();
        let child = launched(0);
        until("no step was saved", || newest() != before);
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let after = Duration::from_millis(u64::from(random >> 16) % 500);
        std::thread::sleep(after);
        let victim = ranks_in(folder).into_iter().find(|(rank, _)| *rank == cut as usize % 2);
        if let Some((_, pid)) = victim {
            let _ = Command::new("prlimit").args(["--pid", &pid.to_string(), "--as=1000000"]).status();
        }
        let code = ended(child, folder);
        assert!(code == Some(4) || code == Some(0), "{victim:?} after {after:?}: {code:?} {}", said());
        if code == Some(4) {
            assert!(said().contains("error: ") && said().contains("memory"), "{}", said());
        }
    }
    // Where every kill came before the first checkpoint, --resume would have nothing to continue.
    succeeds(&mut launcher.launch(2, "run", &all(&more, &["--set", "run.on_existing=resume"])));
    assert_eq!(figures(&folder.join("straight")), figures(&folder.join("run")));
    let weights = |run: &str| launcher.bytes(&format!("{run}/model/model.safetensors"));
    assert!(weights("straight") == weights("run"));
}

/// A signal to the launcher or to one rank saves a checkpoint and ends all.
#[test]
fn a_signal_saves_and_the_run_continues() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    let folder = launcher.folder();
    let endless = ["trainer.max_steps=100000", "trainer.save_strategy=no", "run.on_existing=resume"];
    let endless = endless.iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>();
    let more = all(&accumulate(1), &endless).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut steps = 0;
    for (to_rank, signal, code) in [(None, "TERM", 143), (None, "INT", 130), (Some(1), "TERM", 143)] {
        let mut command = launcher.launch(2, "run", &all(&more, &[]));
        let said = std::fs::File::create(folder.join("said")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
        let rows = || std::fs::read_to_string(folder.join("run/metrics.jsonl")).unwrap_or_default().lines().count();
        until("it made no steps", || rows() > steps + 5);
        match to_rank {
            None => send(&format!("-{signal}"), child.id()),
            Some(rank) => send("-TERM", ranks_in(folder).into_iter().find(|(other, _)| *other == rank).unwrap().1),
        }
        assert_eq!(ended(child, folder), Some(code));
        let said = std::fs::read_to_string(folder.join("said")).unwrap();
        // MPICH's mpirun passes on one signal for both.
        let names = [signal, "TERM"].map(|name| format!("error: SIG{name}: stopped after step"));
        assert!(names.iter().any(|words| said.contains(words)), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "it is said once: {said}");
        let newest = std::fs::read_dir(folder.join("run/checkpoints")).unwrap().count();
        assert!(newest > 0, "no checkpoint was saved");
        steps = rows();
    }
}

/// The fault of one rank ends all with its exit code; one that all of them have is told once.
#[test]
fn a_rank_that_fails_ends_all_with_its_exit_code() {
    let Some(launcher) = Launcher::of("sequence-classification") else { return };
    // The learning rate makes the loss no number, on all ranks.
    let burst =
        ["--set", "trainer.learning_rate=1e30", "--set", "trainer.warmup_steps=0", "--set", "trainer.max_grad_norm=0"];
    let output = launcher.launch(2, "run", &all(&accumulate(1), &burst)).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", text(&output));
    assert_eq!(text(&output).matches("error: ").count(), 1, "rank 0 says it for all: {}", text(&output));
}

/// A rank that fails before MPI has begun ends the others under srun, too, which does not: Open
/// MPI's mpirun stands in for it, with the variables of srun.
#[test]
fn a_rank_that_fails_before_the_meeting_ends_the_others_of_srun() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let version = Command::new(&launcher.mpirun).arg("--version").output().unwrap();
    if !text(&version).contains("Open MPI") && !text(&version).contains("OpenRTE") {
        return skip!("openmpi", "the mpirun is not Open MPI's");
    }
    let script = "export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_STEP_NUM_TASKS=2\n\
                  unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE\n\
                  [ $SLURM_PROCID = $FAILS ] && set -- \"$@\" --set trainer.no_such_key=1\n\
                  exec \"$@\"\n";
    std::fs::write(launcher.folder().join("as-srun.sh"), script).unwrap();
    for rank in ["0", "1"] {
        let mut command = Command::new(&launcher.mpirun);
        command.args(["--mca", "orte_abort_on_non_zero_status", "0", "-n", "2", "sh", "as-srun.sh"]);
        command.args([env!("CARGO_BIN_EXE_kiln"), "train", "config.toml"]).current_dir(launcher.folder());
        command.envs([("FAILS", rank), ("RAYON_NUM_THREADS", "1"), ("KILN_MPI_TIMEOUT", "100")]);
        command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("KILN_CACHE", launcher.folder().join("kiln-cache"));
        let began = Instant::now();
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(
            text(&output).contains("no_such_key") && began.elapsed() < Duration::from_secs(60),
            "{}",
            text(&output)
        );
    }
}

/// Each rank in a folder of its own, as on machines that share no file system: rank 0 sends what
/// continues the run.
#[test]
fn no_file_system_has_to_be_shared() {
    let Some(mpirun) = mpirun() else { return };
    let place = tempfile::tempdir().unwrap();
    let machines = [0, 1].map(|rank| place.path().join(format!("machine-{rank}")));
    for machine in &machines {
        std::fs::create_dir(machine).unwrap();
        write(machine, "sequence-classification");
    }
    std::fs::write(
        place.path().join("on-machine.sh"),
        "cd machine-${OMPI_COMM_WORLD_RANK:-$PMI_RANK} && exec \"$@\"\n",
    )
    .unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(&mpirun);
        command.args([
            "-n",
            "2",
            "sh",
            "on-machine.sh",
            env!("CARGO_BIN_EXE_kiln"),
            "train",
            "config.toml",
            "--set",
            "run.on_existing=resume",
        ]);
        command.args(all(&accumulate(1), more)).current_dir(place.path()).env("RAYON_NUM_THREADS", "1");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("KILN_CACHE", place.path().join("kiln-cache"));
        command
    };
    succeeds(&mut train(&machines[0], "straight", &all(&accumulate(2), &[])));
    succeeds(&mut run(&["--stop-after", "5"]));
    succeeds(&mut run(&[]));
    same(&machines[0], "straight", "run");
    let there = std::fs::read_dir(machines[1].join("run")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(there.collect::<Vec<_>>(), ["ranks"], "rank 1 leaves its log and nothing else");

    let data = std::fs::read_to_string(machines[1].join("data.jsonl")).unwrap();
    std::fs::write(machines[1].join("data.jsonl"), data.replacen("[1,", "[oops,", 1)).unwrap();
    let output = run(&["--set", "run.output_dir=other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(
        text(&output).contains("error: rank 1 of 2: data.train: data.jsonl line 1: malformed JSON"),
        "{}",
        text(&output)
    );

    std::fs::write(machines[1].join("data.jsonl"), data.replacen("[1,", "[2,", 1)).unwrap();
    let output = run(&["--set", "run.output_dir=other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let parts = ["error: rank 1 of 2: rank 1 has another run than rank 0", "content of the training data"];
    assert!(parts.iter().all(|part| text(&output).contains(part)), "{}", text(&output));
}

/// Without an mpirun a test of ranks is skipped, unless `KILN_TEST_REQUIRE` has the name `mpi`.
#[test]
fn a_test_is_skipped_only_where_its_need_is_not_required() {
    let run = |required: &str| {
        let mut tests = Command::new(std::env::current_exe().unwrap());
        tests.args(["--exact", "ranks::no_file_system_has_to_be_shared"]).env_remove("KILN_MPIRUN").env("PATH", "");
        let output = tests.env("KILN_TEST_REQUIRE", required).output().unwrap();
        (output.status.success(), text(&output))
    };
    let (passed, said) = run("cc, mpich");
    assert!(passed && said.contains("\nskipped ranks::no_file_system_has_to_be_shared: no mpirun: "), "{said}");
    let (passed, said) = run("cc, mpi");
    assert!(
        !passed && said.contains("KILN_TEST_REQUIRE has mpi, so this test must not be skipped: no mpirun"),
        "{said}"
    );
}

/// Exchanges are measured by size, and worlds are compared: times of their own, and a model of the
/// link that predicts steps.
#[test]
fn exchanges_and_worlds_are_measured() {
    let Some(launcher) = Launcher::of("clm") else { return };
    let folder = launcher.folder();
    fails(kiln(folder).args(["bench", "--collectives"]), 2, &["expected several ranks", "kiln launch -n 2"]);
    let said = succeeds(&mut launcher.start(2, &["bench", "--collectives", "--out", "link.json"]));
    assert_eq!(said.matches("result: link.json").count(), 1, "rank 0 alone talks: {said}");
    let found: serde_json::Value = serde_json::from_slice(&launcher.bytes("link.json")).unwrap();
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 45, "five exchanges of nine sizes");
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let rate = number("bytes") / number("time_us") / 1e3;
        assert!((rate / number("algorithm_gb_s") - 1.0).abs() < 1e-6, "{row}");
        let factor = if row["collective"] == "reduce_scatter" || row["collective"] == "all_gather" { 0.5 } else { 1.0 };
        assert!((number("bus_gb_s") / rate / factor - 1.0).abs() < 1e-6, "{row}");
        assert!(number("least_us") <= number("time_us") && number("time_us") <= number("p90_us"), "{row}");
    }

    let compare = |more: &[&str]| {
        let mut command = kiln(folder);
        command.args(["compare", "config.toml", "--mpirun", launcher.mpirun.to_str().unwrap()]).args(more);
        command.env("RAYON_NUM_THREADS", "1");
        command
    };
    let set = ["--set", "batch.global_batch_size=6", "--set", "trainer.gradient_accumulation_steps=1"];
    let worlds = ["--world", "1,2", "--repeats", "2", "--steps", "12", "--collectives", "link.json"];
    let said = succeeds(&mut compare(&[&set[..], &worlds].concat()));
    assert!(said.contains("modelled, not measured") && said.contains("512 devices"), "{said}");
    let found: serde_json::Value = serde_json::from_slice(&launcher.bytes("run-scaling/scaling.json")).unwrap();
    let [one, two] = [0, 1].map(|index| &found["worlds"][index]);
    assert_eq!((&one["devices"], &one["accumulation"]), (&serde_json::json!(1), &serde_json::json!(2)));
    assert_eq!((&two["devices"], &two["accumulation"]), (&serde_json::json!(2), &serde_json::json!(1)));
    assert!(one["communicate_ms"] == 0.0 && one["efficiency"] == 1.0 && one["modelled_step_ms"].is_null(), "{one}");
    assert!(two["communicate_ms"].as_f64().unwrap() > 0.0 && two["modelled_step_ms"].as_f64().unwrap() > 0.0, "{two}");
    assert_eq!(two["step_ms_by_repeat"].as_array().unwrap().len(), 2);
    let steps = std::fs::read_to_string(folder.join("run-scaling/world-2/repeat-1/steps.jsonl")).unwrap();
    for line in steps.lines() {
        let step: serde_json::Value = serde_json::from_str(line).unwrap();
        let part = |name: &str| step[format!("{name}_ms")].as_f64().unwrap();
        let parts = ["data", "forward", "backward", "communicate", "update", "sync"].map(part);
        assert!(parts[3] > 0.0 && (parts.iter().sum::<f64>() / part("step") - 1.0).abs() < 1e-9, "{step}");
    }
    fails(&mut compare(&worlds), 2, &["run-scaling holds a comparison already"]);
    fails(&mut compare(&["--world", "1,3", "--out", "other"]), 2, &["no multiple of", "--world 3"]);
    fails(&mut compare(&["--world", "1,1", "--out", "other"]), 2, &["different numbers"]);
    assert!(!folder.join("other").exists());
}
