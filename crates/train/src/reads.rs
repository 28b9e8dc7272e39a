//! Reading values back from a device. Every read is counted by the place of the program that asked
//! for it, since a read in the middle of a step stalls the device.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Tensor, Transaction};
use kiln_core::device_error::device_error;
use kiln_core::error::Result;

static READS: AtomicU64 = AtomicU64::new(0);

/// How often each place of the program has read.
static SITES: Mutex<BTreeMap<Site, u64>> = Mutex::new(BTreeMap::new());

/// File and line.
type Site = (&'static str, u32);

/// How many times values have been read back from a device since the process started.
pub fn device_reads() -> u64 {
    READS.load(Ordering::Relaxed)
}

/// Reads from a device by the place of the program that asked for them, up to one moment or between
/// two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceReads(BTreeMap<Site, u64>);

impl DeviceReads {
    /// All since the process started.
    pub fn now() -> Self {
        Self(SITES.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// The reads that `earlier` does not have.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let more = self.0.iter().map(|(site, count)| (*site, count - earlier.0.get(site).copied().unwrap_or(0)));
        Self(more.filter(|(_, count)| *count > 0).collect())
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// `FILE:LINE` and count of every place, most reads first.
    pub fn sites(&self) -> Vec<(String, u64)> {
        let mut sites =
            self.0.iter().map(|((file, line), count)| (format!("{file}:{line}"), *count)).collect::<Vec<_>>();
        sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sites
    }
}

impl std::fmt::Display for DeviceReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sites = self.sites().into_iter().map(|(site, count)| format!("{count} by {site}"));
        write!(f, "{} device reads: {}", self.total(), sites.collect::<Vec<_>>().join(", "))
    }
}

fn count_read(site: &'static Location<'static>) {
    READS.fetch_add(1, Ordering::Relaxed);
    *SITES.lock().unwrap_or_else(PoisonError::into_inner).entry((site.file(), site.line())).or_insert(0) += 1;
}

/// Reads scalars back in one transfer, in order. Every read of a run goes through here or
/// [`read_values`], so that reads can be counted, by their caller; on the CPU alone, where it is no
/// transfer, the model looks at a mask besides.
///
/// # Errors
/// An error that the device reports: errors of execution surface when a value is read.
#[track_caller]
pub fn read_scalars(values: Vec<Tensor<1>>) -> Result<Vec<f64>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    count_read(Location::caller());
    let together = Tensor::cat(values.into_iter().map(without_autodiff).collect(), 0);
    let values = together.try_into_vec_as::<f32>().map_err(|error| device_error(&error))?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// Reads all of one tensor back, in row-major order.
///
/// # Errors
/// An error that the device reports.
#[track_caller]
pub fn read_values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    count_read(Location::caller());
    tensor.try_into_vec_as::<f32>().map_err(|error| device_error(&error))
}

/// Tensors of any shape that are read back together, in row-major order: in one transfer, or in
/// several where they are large, which bounds the memory that lies between the device and their
/// values. A tensor that nobody else holds is freed when it is read.
pub(crate) struct Reads {
    /// With how many tensors, and values of theirs.
    pending: (Transaction, usize, usize),
    values: Vec<Vec<f32>>,
}

/// So many values are transferred at a time: 64 MiB of f32.
const AT_ONCE: usize = 1 << 24;

impl Reads {
    pub(crate) fn new() -> Self {
        Self { pending: (Transaction::default(), 0, 0), values: Vec::new() }
    }

    /// Adds `tensor`.
    ///
    /// # Errors
    /// An error that the device reports.
    #[track_caller]
    pub(crate) fn push<const D: usize>(&mut self, tensor: Tensor<D>) -> Result<()> {
        let (pending, count, size) = std::mem::take(&mut self.pending);
        let size = size + tensor.shape().num_elements();
        self.pending = (pending.register(without_autodiff(tensor)), count + 1, size);
        if size < AT_ONCE { Ok(()) } else { self.transfer() }
    }

    /// The values of each tensor, in the order in which they were added.
    ///
    /// # Errors
    /// An error that the device reports.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Result<Vec<Vec<f32>>> {
        self.transfer()?;
        Ok(self.values)
    }

    #[track_caller]
    fn transfer(&mut self) -> Result<()> {
        let (pending, count, _) = std::mem::take(&mut self.pending);
        if count == 0 {
            return Ok(());
        }
        count_read(Location::caller());
        for data in pending.try_execute().map_err(|error| device_error(&error))? {
            self.values.push(data.convert::<f32>().try_into_vec::<f32>().map_err(|error| device_error(&error))?);
        }
        Ok(())
    }
}

/// `tensor` without its history.
pub(crate) fn without_autodiff<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.is_autodiff() { tensor.inner() } else { tensor }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn reads_are_counted_and_in_order() {
        let device = Device::flex();
        let before = device_reads();
        let values = [1.0f32, 2.0, 3.0].map(|value| Tensor::<1>::from_floats([value], &device)).to_vec();
        assert_eq!(read_scalars(values).unwrap(), [1.0, 2.0, 3.0]);
        assert!(device_reads() > before);
        let (before, line) = (DeviceReads::now(), line!() + 1);
        read_scalars(vec![Tensor::from_floats([1.0f32], &device)]).unwrap();
        let here = (format!("{}:{line}", file!()), 1);
        assert!(DeviceReads::now().since(&before).sites().contains(&here));
    }

    #[test]
    fn tensors_of_many_shapes_are_one_read() {
        let device = Device::flex();
        assert_eq!(Reads::new().finish().unwrap(), Vec::<Vec<f32>>::new());
        let (before, mut reads) = (DeviceReads::now(), Reads::new());
        let matrix = Tensor::<2>::from_floats([[1.0f32, 2.0], [3.0, 4.0]], &device);
        reads.push(matrix.clone().transpose()).unwrap();
        reads.push(Tensor::<1>::from_floats([5.0f32], &device.clone().autodiff())).unwrap();
        let line = line!() + 1;
        assert_eq!(reads.finish().unwrap(), [vec![1.0, 3.0, 2.0, 4.0], vec![5.0]]);
        let here = (format!("{}:{line}", file!()), 1);
        assert!(DeviceReads::now().since(&before).sites().contains(&here));
    }
}
