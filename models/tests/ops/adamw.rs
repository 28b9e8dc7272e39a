//! The AdamW update of many parameters, the norm over all gradients and their sums over
//! micro-batches, against f64 arithmetic on the host: sizes of one element, primes and many pieces,
//! in lists that take several launches.

use burn::tensor::{Tensor, TensorData};
use kiln_models::ops::adamw::{Parameters, SAMPLED, Update, norm, sample};
use kiln_models::ops::list::TensorList;

#[cfg(feature = "compiler")]
use crate::skip::skip;
use crate::{close, noise, read};

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &crate::device())
}

/// The sizes of a list: more tensors than a launch takes on any device, most of them small, some of
/// several pieces.
fn sizes() -> Vec<usize> {
    let odd = [1, 31, 33, 97, 16_384, 40_009];
    (0..70).map(|i| if i % 12 < 6 { odd[i % 12] } else { 1 + i * i % 613 }).collect()
}

/// Parameters on the host, in f64.
struct Host {
    value: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
}

impl Host {
    fn new(values: &[f32]) -> Self {
        Self { value: crate::wide(values), m: vec![0.0; values.len()], v: vec![0.0; values.len()] }
    }

    fn update(&mut self, by: &Update, grad: &[f32], scale: f32) {
        let Update { beta1, beta2, epsilon, lr, weight_decay, step } = *by;
        let (c1, c2) = (1.0 - beta1.powi(step as i32), 1.0 - beta2.powi(step as i32));
        for (((p, m), v), grad) in self.value.iter_mut().zip(&mut self.m).zip(&mut self.v).zip(grad) {
            let grad = f64::from(*grad) * f64::from(scale);
            *m = beta1 * *m + (1.0 - beta1) * grad;
            *v = beta2 * *v + (1.0 - beta2) * grad * grad;
            *p = *p * (1.0 - lr * weight_decay) - lr / c1 * *m / ((*v / c2).sqrt() + epsilon);
        }
    }

    /// 20 updates, each with a few roundings of 6e-8 of values of order 1.
    fn check(&self, what: &str, value: Tensor<1>, [m, v]: [Tensor<1>; 2]) {
        close(&format!("{what}: value"), &read(value), &self.value, 3e-6);
        close(&format!("{what}: exp_avg"), &read(m), &self.m, 3e-6);
        close(&format!("{what}: exp_avg_sq"), &read(v), &self.v, 3e-6);
    }
}

/// With and without weight decay, at two rates.
fn kinds(step: u64) -> [Update; 3] {
    let update = Update { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, lr: 1e-2, weight_decay: 0.0, step };
    [update, Update { weight_decay: 0.1, ..update }, Update { lr: 3e-3, weight_decay: 0.1, ..update }]
}

fn grad(n: usize, i: usize, step: u64) -> Vec<f32> {
    noise(n, 1000 * i as u64 + step)
}

const SCALE: f32 = 0.37;

#[test]
fn a_sample_has_the_first_values_of_every_tensor() {
    let values = sizes().into_iter().enumerate().map(|(i, n)| noise(n, i as u64)).collect::<Vec<_>>();
    let mut tensors = TensorList::default();
    values.iter().for_each(|values| tensors.push(tensor(values)));
    tensors.push(tensor(&values[3]).slice(5..23)); // a view
    let of = |values: &[f32]| (0..SAMPLED).map(|i| values.get(i).copied().unwrap_or(0.0)).collect::<Vec<_>>();
    let expected = values.iter().map(|values| of(values)).chain([of(&values[3][5..23])]).flatten().collect::<Vec<_>>();
    assert_eq!(read(sample(tensors)), expected);
}

#[test]
fn many_updates_of_many_sizes() {
    let sizes = sizes();
    let start = sizes.iter().enumerate().map(|(i, n)| noise(*n, i as u64)).collect::<Vec<_>>();
    let mut host = start.iter().map(|values| Host::new(values)).collect::<Vec<_>>();
    let zeros = |n: &usize| tensor(&vec![0.0; *n]);
    let moments = sizes.iter().map(|n| [zeros(n), zeros(n)]);
    let mut states = start.iter().map(|values| tensor(values)).zip(moments).collect::<Vec<_>>();
    let held = states[4].0.clone(); // somebody else looks at the first value of one
    for step in 1..=20 {
        let (mut parameters, updates) = (Parameters::default(), kinds(step));
        for (i, (value, moments)) in states.drain(..).enumerate() {
            let grad = grad(sizes[i], i, step);
            host[i].update(&updates[i % 3], &grad, SCALE);
            parameters.push(value, moments, tensor(&grad), i % 3);
        }
        let mut updated = parameters.update(&updates, &tensor(&[SCALE]));
        states = std::iter::from_fn(|| updated.take().map(|(value, moments, _)| (value, moments))).collect();
    }
    assert_eq!(states.len(), sizes.len());
    for (i, (value, moments)) in states.into_iter().enumerate() {
        host[i].check(&format!("{i}"), value, moments);
    }
    assert_eq!(read(held), start[4], "an update in place must not change what others hold");
}

/// Many updates in the memory of the weights and moments, told their factors through the device; an
/// idle update changes no bit.
#[test]
#[cfg(feature = "compiler")]
fn updates_where_the_parameters_lie() {
    use kiln_models::ops::in_place::{DeviceUpdates, update};
    if crate::on_cpu() {
        return skip!("gpu", "the kernel is for GPUs: name one with KILN_TEST_DEVICE");
    }
    let (sizes, device) = (sizes(), crate::device());
    let start = sizes.iter().enumerate().map(|(i, n)| noise(*n, i as u64)).collect::<Vec<_>>();
    let mut host = start.iter().map(|values| Host::new(values)).collect::<Vec<_>>();
    let values = start.iter().map(|values| tensor(values)).collect::<Vec<_>>();
    let zeros = |n: &usize| tensor(&vec![0.0; *n]);
    let moments = sizes.iter().map(|n| [zeros(n), zeros(n)]).collect::<Vec<_>>();
    let numbers = DeviceUpdates::idle(3, &device);
    let all = |step: u64| {
        let mut parameters = Parameters::default();
        for (i, value) in values.iter().enumerate() {
            let grad = tensor(&grad(sizes[i], i, step)).reshape([1, sizes[i]]);
            parameters.push(value.clone().reshape([1, sizes[i]]), moments[i].clone(), grad, i % 3);
        }
        update(parameters, &numbers, &tensor(&[SCALE]))
    };
    let mut written = Vec::new();
    for step in 1..=20 {
        let updates = kinds(step);
        for (i, host) in host.iter_mut().enumerate() {
            host.update(&updates[i % 3], &grad(sizes[i], i, step), SCALE);
        }
        written.push(numbers.set(DeviceUpdates::new(&updates, &device)));
        written.push(all(step));
    }
    for (i, host) in host.iter().enumerate() {
        host.check(&format!("{i}"), values[i].clone(), moments[i].clone());
    }
    let before = values.iter().map(|value| read(value.clone())).collect::<Vec<_>>();
    written.push(numbers.set(DeviceUpdates::idle(3, &device)));
    written.push(all(21));
    for (value, before) in values.iter().zip(before) {
        assert_eq!(read(value.clone()), before, "an idle update");
    }
}

#[test]
fn norms() {
    for sizes in [vec![1], vec![33, 1, 16_385], vec![3_000_017, 7], sizes()] {
        let values = sizes.iter().enumerate().map(|(i, n)| noise(*n, 3 + i as u64)).collect::<Vec<_>>();
        let expected = values.iter().flatten().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let mut list = TensorList::default();
        for values in &values {
            list.push(tensor(values));
        }
        // Sums of some 700 numbers at most in a lane, 6e-8 each, and they do not all go one way;
        // the root halves it.
        close("norm", &read(norm(list)), &[expected], 5e-6);
    }
}

/// The sum over micro-batches begins anew, goes on, and is left alone, also where it or a gradient
/// has overflowed.
#[test]
#[cfg(feature = "compiler")]
fn sums_of_micro_batches() {
    use kiln_models::ops::in_place::accumulate;
    if crate::on_cpu() {
        return skip!("gpu", "the kernel is for GPUs: name one with KILN_TEST_DEVICE");
    }
    let sizes = sizes();
    let values = |seed: u64| sizes.iter().enumerate().map(move |(i, n)| noise(*n, 1000 * seed + i as u64));
    let list = |seed: Option<u64>| {
        let mut list = TensorList::default();
        match seed {
            Some(seed) => values(seed).for_each(|values| list.push(tensor(&values))),
            None => sizes.iter().for_each(|n| list.push(tensor(&vec![f32::INFINITY; *n]))),
        }
        list
    };
    let tensors = values(1).map(|values| tensor(&values)).collect::<Vec<_>>();
    let mut sums = TensorList::default();
    tensors.iter().for_each(|tensor| sums.push(tensor.clone()));
    let mut written = Vec::new();
    for (seed, by) in [(None, [1.0, 1.0]), (Some(2), [0.0, 1.0]), (Some(3), [1.0, 1.0]), (None, [1.0, 0.0])] {
        written.push(accumulate(&sums, list(seed), &tensor(&by)));
    }
    for ((tensor, a), b) in tensors.into_iter().zip(values(2)).zip(values(3)) {
        assert_eq!(read(tensor), a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>());
    }
}

/// Every third parameter has no copy, and one copy is somebody else's too; in place none is.
#[test]
fn updates_write_copies_in_the_type_of_products() {
    use burn::tensor::FloatDType;
    // WGSL has no bf16.
    let is_wgpu = std::env::var("KILN_TEST_DEVICE").is_ok_and(|device| device == "wgpu");
    let (sizes, dtype) = (sizes(), if is_wgpu { FloatDType::F16 } else { FloatDType::BF16 });
    let row = |values: &[f32]| tensor(values).reshape([1, values.len()]);
    let start = sizes.iter().enumerate().map(|(i, n)| noise(*n, i as u64)).collect::<Vec<_>>();
    let moments = |n: usize| [0, 1].map(|_| tensor(&vec![0.0; n]));
    let old = |i: usize| (i % 3 != 2).then(|| row(&start[i]).cast(dtype));
    let held = old(4).unwrap();
    let mut parameters = Parameters::default();
    for (i, n) in sizes.iter().enumerate() {
        parameters.push(row(&start[i]), moments(*n), row(&grad(*n, i, 1)), i % 3);
        if let Some(copy) = if i == 4 { Some(held.clone()) } else { old(i) } {
            parameters.copy_last(copy);
        }
    }
    let mut updated = parameters.update(&kinds(1), &tensor(&[SCALE]));
    for (i, start) in start.iter().enumerate() {
        let (value, _, copy) = updated.take::<2>().unwrap();
        assert_ne!(read(value.clone()), *start, "{i}");
        assert_eq!(copy.map(read), (i % 3 != 2).then(|| read(value.cast(dtype))), "{i}");
    }
    assert!(updated.take::<2>().is_none());
    assert_eq!(read(held), read(row(&start[4]).cast(dtype)), "an update must not change what others hold");
    #[cfg(feature = "compiler")]
    if !crate::on_cpu() {
        use kiln_models::ops::in_place::{DeviceUpdates, row_major, update};
        let values = start.iter().map(|values| row(values)).collect::<Vec<_>>();
        let copies = (0..sizes.len()).map(|i| old(i).map(row_major)).collect::<Vec<_>>();
        let mut parameters = Parameters::default();
        for (i, n) in sizes.iter().enumerate() {
            parameters.push(values[i].clone(), moments(*n), row(&grad(*n, i, 1)), i % 3);
            if let Some(copy) = &copies[i] {
                parameters.copy_last(copy.clone());
            }
        }
        let _written = update(parameters, &DeviceUpdates::new(&kinds(1), &crate::device()), &tensor(&[SCALE]));
        for (i, (value, copy)) in values.into_iter().zip(copies).enumerate() {
            assert_ne!(read(value.clone()), start[i], "{i}");
            assert_eq!(copy.map(read), (i % 3 != 2).then(|| read(value.cast(dtype))), "{i}, in place");
        }
    }
}
