//! The AdamW update of one parameter against f64 arithmetic on the host.

use burn::tensor::{Tensor, TensorData};
use kiln_models::ops::adamw::{State, Update, sum_of_squares};

use crate::{close, noise, read};

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), &crate::device())
}

#[test]
fn many_updates_of_many_sizes() {
    for n in [1, 31, 33, 97, 16_384, 40_009] {
        for weight_decay in [0.0, 0.1] {
            let start = noise(n, 1);
            let zeros = vec![0.0; n];
            let mut state = State { value: tensor(&start), exp_avg: tensor(&zeros), exp_avg_sq: tensor(&zeros) };
            let (mut p, mut m, mut v) = (crate::wide(&start), vec![0.0f64; n], vec![0.0f64; n]);
            let held = state.value.clone(); // somebody else looks at the first value
            for step in 1..=20u64 {
                let (grad, scale, lr) = (noise(n, 100 + step), 0.37, 1e-2);
                let update = Update { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, lr, weight_decay, step };
                state = update.fused(state, tensor(&grad), &tensor(&[scale]));
                for (((p, m), v), grad) in p.iter_mut().zip(&mut m).zip(&mut v).zip(&grad) {
                    let grad = f64::from(*grad) * f64::from(scale);
                    *m = 0.9 * *m + 0.1 * grad;
                    *v = 0.95 * *v + 0.05 * grad * grad;
                    let (c1, c2) = (1.0 - 0.9f64.powi(step as i32), 1.0 - 0.95f64.powi(step as i32));
                    *p = *p * (1.0 - lr * weight_decay) - lr / c1 * *m / ((*v / c2).sqrt() + 1e-8);
                }
            }
            // 20 updates, each with a few roundings of 6e-8 of values of order 1.
            close("value", &read(state.value), &p, 3e-6);
            close("exp_avg", &read(state.exp_avg), &m, 3e-6);
            close("exp_avg_sq", &read(state.exp_avg_sq), &v, 3e-6);
            assert_eq!(read(held), start, "an update in place must not change what others hold");
        }
    }
}

#[test]
fn norms() {
    for n in [1, 33, 16_385, 50_021] {
        let x = noise(n, 3);
        let expected = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        // Blocks of 16,384 in 32 lanes: 512 additions of 6e-8 relative at most, and they do not all go one way.
        close("sum of squares", &read(sum_of_squares(tensor(&x))), &[expected], 5e-6);
    }
}
