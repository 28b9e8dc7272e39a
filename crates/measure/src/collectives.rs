//! `kiln bench --collectives`: how long the ranks of a world take to exchange values, by size, and
//! the model of a link that follows from it.
//!
//! Every repeat begins with a barrier, and its time is that of the slowest rank. The figures are
//! medians over the repeats; the first runs of a size are the warm-up and are left out. **Algorithm
//! bandwidth** is the size over the time; **bus bandwidth** is what a link carries, which does not
//! depend on the number of ranks: the algorithm bandwidth times `2 (N - 1) / N` for all-reduce,
//! `(N - 1) / N` for reduce-scatter and all-gather, and 1 for broadcast (nccl-tests,
//! `doc/PERFORMANCE.md`). The size is that of all values: the result of all-gather, the input of
//! reduce-scatter.
//!
//! **The model** ([`Link`]) is that of a ring all-reduce (Thakur, Rabenseifner & Gropp 2005,
//! "Optimization of Collective Communication Operations in MPICH", section 5.4), to which Kiln's
//! exchange in the order of the ranks comes too: among `N` ranks it takes
//! `2 (N - 1) alpha + 2 (N - 1) / N S beta + (N - 1) / N S gamma` for `S` bytes, with `alpha` the
//! time of a message of nothing, `beta` the time that a byte takes on the link, and `gamma` the
//! time to add a byte to another.

use std::path::Path;
use std::time::{Duration, Instant};

use burn::module::{Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln::build_info::COMMIT;
use kiln::distributed::{Devices, World, sum_gradients};
use kiln_core::error::{Error, Result};
use kiln_core::files::read_regular_text;
use kiln_core::stats::{median, quantile};
use kiln_core::{clock, host};
use serde::{Deserialize, Serialize};

use crate::table::{Column, list};

/// The version of the form of the file.
pub const SCHEMA: &str = "kiln.collectives/1";

/// Bytes: 1 KiB to 64 MiB.
const SIZES: [usize; 9] = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];

/// A size is repeated for so long, but at least [`LEAST`] and at most [`MOST`] times.
const BUDGET: Duration = Duration::from_millis(400);
const LEAST: usize = 5;
const MOST: usize = 200;

/// Runs of a size that are not counted.
const WARMUP: usize = 2;

/// Up to so many bytes a message takes what one of nothing takes; from [`LARGE`] on its size
/// decides.
const SMALL: usize = 1 << 12;
const LARGE: usize = 1 << 20;

/// An exchange of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Every rank has the sums of all values.
    AllReduce,
    /// Every rank has the sums of its part.
    ReduceScatter,
    /// Every rank has the parts of all.
    AllGather,
    /// Every rank has the values of rank 0.
    Broadcast,
    /// The gradients of a model, as a step sums them: an all-reduce, with what takes them from
    /// tensors and back.
    Gradients,
}

impl Collective {
    const ALL: [Self; 5] = [Self::AllReduce, Self::ReduceScatter, Self::AllGather, Self::Broadcast, Self::Gradients];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::Gradients => "gradients",
        }
    }

    /// Bus bandwidth over algorithm bandwidth.
    fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Self::AllReduce | Self::Gradients => 2.0 * others,
            Self::ReduceScatter | Self::AllGather => others,
            Self::Broadcast => 1.0,
        }
    }
}

/// A collective at a size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub collective: Collective,
    /// Bytes of all values.
    pub bytes: usize,
    /// Repeats that count.
    pub repeats: usize,
    /// Microseconds: median over the repeats.
    pub time_us: f64,
    /// The fastest repeat.
    pub least_us: f64,
    /// One repeat in ten is slower.
    pub p90_us: f64,
    /// `bytes` over the median, in 10^9 bytes a second.
    pub algorithm_gb_s: f64,
    /// The load of a link, in 10^9 bytes a second.
    pub bus_gb_s: f64,
    /// Microseconds by the model; none of exchanges that it does not describe.
    pub modelled_us: Option<f64>,
}

/// The times of a link and of its ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Seconds of a message of nothing.
    pub alpha: f64,
    /// Seconds of a byte on the link.
    pub beta: f64,
    /// Seconds to add a byte to another.
    pub gamma: f64,
    /// Seconds to take a byte of gradients from its tensor and to put it back.
    pub pack: f64,
}

impl Link {
    /// The link between `ranks`, fitted to the seconds that all-reduce and the exchange of
    /// gradients take by their bytes.
    fn of(all_reduce: &[(usize, f64)], gradients: &[(usize, f64)], gamma: f64, ranks: usize) -> Self {
        let others = (ranks - 1) as f64;
        let share = others / ranks as f64;
        let of = |wanted: &dyn Fn(usize) -> bool, value: &dyn Fn(f64, f64) -> f64| {
            let found = all_reduce.iter().filter(|(bytes, _)| wanted(*bytes));
            median(&found.map(|(bytes, seconds)| value(*bytes as f64, *seconds)).collect::<Vec<_>>()).max(0.0)
        };
        let start = of(&|bytes| bytes <= SMALL, &|_, seconds| seconds);
        let by_byte = of(&|bytes| bytes >= LARGE, &|bytes, seconds| (seconds - start) / bytes);
        let plain = |bytes: usize| all_reduce.iter().find(|(other, _)| *other == bytes).map(|(_, seconds)| *seconds);
        let large = gradients.iter().filter(|(bytes, _)| *bytes >= LARGE);
        let pack = large.filter_map(|(bytes, seconds)| Some((seconds - plain(*bytes)?) / *bytes as f64));
        let pack = median(&pack.collect::<Vec<_>>());
        Self {
            alpha: start / (2.0 * others),
            beta: ((by_byte - share * gamma) / (2.0 * share)).max(0.0),
            gamma,
            pack: if pack.is_finite() { pack.max(0.0) } else { 0.0 },
        }
    }

    /// Seconds of an all-reduce of `bytes` among `ranks`.
    pub fn all_reduce(&self, ranks: usize, bytes: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let others = (ranks - 1) as f64;
        let share = others / ranks as f64;
        2.0 * others * self.alpha + share * bytes * (2.0 * self.beta + self.gamma)
    }

    /// Seconds that a step among `ranks` takes to sum `bytes` of gradients.
    pub fn gradients(&self, ranks: usize, bytes: f64) -> f64 {
        if ranks < 2 { 0.0 } else { self.all_reduce(ranks, bytes) + bytes * self.pack }
    }

    /// `alpha 21.0 us, 1 / beta 0.119 GB/s, 1 / gamma 5.1 GB/s, packing 1.2 GB/s`
    pub fn describe(&self) -> String {
        let rate = |seconds: f64| if seconds > 0.0 { format!("{:.3} GB/s", 1e-9 / seconds) } else { "no time".into() };
        format!(
            "alpha {:.1} us, 1 / beta {}, 1 / gamma {}, packing {}",
            self.alpha * 1e6,
            rate(self.beta),
            rate(self.gamma),
            rate(self.pack)
        )
    }
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collectives {
    /// [`SCHEMA`]
    pub schema: String,
    /// When it was measured, RFC 3339.
    pub made_at: String,
    /// Kiln's commit.
    pub commit: String,
    /// `release` or `debug`.
    pub build: String,
    /// The ranks.
    pub devices: Devices,
    /// The library and the threads.
    pub world: String,
    /// The processor's name, where the system tells.
    pub cpu: Option<String>,
    /// The load of the machine before it was measured.
    pub load: Option<f64>,
    /// By collective and size.
    pub rows: Vec<Row>,
    /// The model.
    pub link: Link,
}

/// Measures the collectives of `world`; all ranks call it, and all get the figures. `say` is told
/// how far it is.
///
/// # Errors
/// MPI's.
pub fn measure(world: &World, say: &mut dyn FnMut(&str) -> Result<()>) -> Result<Collectives> {
    let load = host::load();
    let gamma = seconds_to_add();
    let mut rows = Vec::new();
    for collective in Collective::ALL {
        say(&format!("measuring {}", collective.name()))?;
        for bytes in SIZES {
            rows.push(row(world, collective, bytes)?);
        }
    }
    let of = |collective: Collective| {
        let own = rows.iter().filter(|row| row.collective == collective);
        own.map(|row| (row.bytes, row.time_us / 1e6)).collect::<Vec<_>>()
    };
    let ranks = world.size();
    let link = Link::of(&of(Collective::AllReduce), &of(Collective::Gradients), gamma, ranks);
    for row in &mut rows {
        row.modelled_us = match row.collective {
            Collective::AllReduce => Some(link.all_reduce(ranks, row.bytes as f64) * 1e6),
            Collective::Gradients => Some(link.gradients(ranks, row.bytes as f64) * 1e6),
            _ => None,
        };
    }
    Ok(Collectives {
        schema: SCHEMA.into(),
        made_at: clock::rfc3339(),
        commit: COMMIT.into(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
        devices: world.devices(),
        world: world.describe().unwrap_or_default(),
        cpu: host::cpu(),
        load,
        rows,
        link,
    })
}

fn row(world: &World, collective: Collective, bytes: usize) -> Result<Row> {
    let ranks = world.size();
    let count = bytes / size_of::<f32>();
    let mut values = vec![1.0f32; count];
    let mut raw = if collective == Collective::Broadcast { vec![1u8; bytes] } else { Vec::new() };
    let device = Device::flex();
    let model =
        vec![Param::initialized(ParamId::new(), Tensor::<1>::ones([count], &device.clone().autodiff()).require_grad())];
    let lengths = (0..ranks).map(|rank| world.part(rank, count).len()).collect::<Vec<_>>();
    let own = vec![1.0f32; lengths[world.rank()]];
    let mut run = || -> Result<f64> {
        let mut grads = GradientsParams::new();
        if collective == Collective::Gradients {
            grads.register(model[0].id, Tensor::<1>::ones([count], &device));
        }
        // A barrier: nobody goes on before all have come.
        world.totals([0.0])?;
        let began = Instant::now();
        match collective {
            Collective::AllReduce => world.sum(&mut values)?,
            Collective::ReduceScatter => drop(world.reduce_scatter(&values)?),
            Collective::AllGather => drop(world.all_gather(&own, &lengths)?),
            Collective::Broadcast => world.broadcast(&mut raw)?,
            Collective::Gradients => drop(sum_gradients(world, &model, grads, None, &device)?),
        }
        Ok(began.elapsed().as_secs_f64())
    };
    let mut last = 0.0;
    for _ in 0..WARMUP {
        last = run()?;
    }
    // All ranks repeat as often as rank 0 says.
    let repeats = world.of_root(BUDGET.as_secs_f64() / f64::max(last, 1e-9))?;
    let repeats = (repeats as usize).clamp(LEAST, MOST);
    let mut seconds = (0..repeats).map(|_| run()).collect::<Result<Vec<_>>>()?;
    for of_rank in world.gather(&seconds)? {
        seconds.iter_mut().zip(of_rank).for_each(|(longest, own)| *longest = longest.max(own));
    }
    let time = median(&seconds);
    let rate = bytes as f64 / time / 1e9;
    Ok(Row {
        collective,
        bytes,
        repeats,
        time_us: time * 1e6,
        least_us: quantile(&seconds, 0.0) * 1e6,
        p90_us: quantile(&seconds, 0.9) * 1e6,
        algorithm_gb_s: rate,
        bus_gb_s: rate * collective.bus_factor(ranks),
        modelled_us: None,
    })
}

/// Seconds to add a byte of values to another, as an exchange adds them.
fn seconds_to_add() -> f64 {
    let (mut sums, values) = (vec![1.0f32; 1 << 20], vec![1.0f32; 1 << 20]);
    let mut add = || {
        let began = Instant::now();
        sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value);
        std::hint::black_box(&mut sums);
        began.elapsed().as_secs_f64()
    };
    add();
    median(&(0..9).map(|_| add()).collect::<Vec<_>>()) / size_of_val(&values[..]) as f64
}

impl Collectives {
    /// Reads what `kiln bench --collectives` has written.
    ///
    /// # Errors
    /// A file that is missing or none of these.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = read_regular_text(path).map_err(|error| Error::config(format!("{shown}: {error}")).help(HOW))?;
        let read = serde_json::from_str::<Self>(&text).ok().filter(|it| it.schema == SCHEMA);
        read.ok_or_else(|| {
            Error::config(format!("{shown}: expected the figures of `kiln bench --collectives`")).help(HOW)
        })
    }

    /// A table for the terminal.
    pub fn table(&self) -> String {
        let columns: [Column<Row>; 8] = [
            ("bytes", 0, |it| Some(it.bytes as f64)),
            ("repeats", 0, |it| Some(it.repeats as f64)),
            ("median us", 1, |it| Some(it.time_us)),
            ("least us", 1, |it| Some(it.least_us)),
            ("p90 us", 1, |it| Some(it.p90_us)),
            ("alg GB/s", 3, |it| Some(it.algorithm_gb_s)),
            ("bus GB/s", 3, |it| Some(it.bus_gb_s)),
            ("modelled us", 1, |it| it.modelled_us),
        ];
        let mut lines = vec![format!("collectives of {}: {}", self.devices, self.world)];
        lines.extend(list(&self.rows, |it| it.collective.name().into(), &columns));
        lines.push(format!("model: {}", self.link.describe()));
        lines.join("\n")
    }
}

/// The advice for a file that is none of these.
const HOW: &str = "`kiln launch -n 2 -- bench --collectives --out FILE` writes one";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_finds_the_link_that_made_the_times() {
        let made = Link { alpha: 50e-6, beta: 8e-9, gamma: 0.2e-9, pack: 1e-9 };
        for ranks in [2, 4] {
            let times = |of: &dyn Fn(f64) -> f64| SIZES.map(|bytes| (bytes, of(bytes as f64)));
            let plain = times(&|bytes| made.all_reduce(ranks, bytes));
            let gradients = times(&|bytes| made.gradients(ranks, bytes));
            let found = Link::of(&plain, &gradients, made.gamma, ranks);
            let near = |a: f64, b: f64, by: f64| assert!((a / b - 1.0).abs() < by, "{found:?}");
            // A message of 4 KiB is not quite one of nothing.
            near(found.alpha, made.alpha, 0.6);
            near(found.beta, made.beta, 0.02);
            near(found.pack, made.pack, 0.02);
            near(found.all_reduce(512, 1e9), made.all_reduce(512, 1e9), 0.05);
        }
        assert!(made.all_reduce(1, 1e9) == 0.0 && made.gradients(1, 1e9) == 0.0);
    }

    #[test]
    fn the_load_of_a_link_does_not_depend_on_the_number_of_ranks() {
        let rates = [2, 64].map(|ranks| {
            let link = Link { beta: 1e-9, ..Link::default() };
            1e9 / link.all_reduce(ranks, 1e9) * Collective::AllReduce.bus_factor(ranks)
        });
        assert!((rates[0] - 1e9).abs() < 1.0 && (rates[1] - 1e9).abs() < 1.0, "{rates:?}");
        assert_eq!(Collective::Broadcast.bus_factor(8), 1.0);
    }
}
