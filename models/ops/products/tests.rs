//! Every method of this CPU, and the tiles by an emulation of their instruction, against f64
//! arithmetic on rounded operands. AMX itself runs where it is: elsewhere the emulation shows that
//! packing, blocks and edges are right.
#![allow(clippy::unwrap_used)]

use burn::tensor::FloatDType;

use super::*;

/// Numbers in `[-1, 1)`.
fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn rounded(x: f32, rounding: Rounding) -> f64 {
    f64::from(match rounding {
        Rounding::F32 => x,
        Rounding::Bf16 => bf16::from_f32(x).to_f32(),
        Rounding::F16 => f16::from_f32(x).to_f32(),
    })
}

/// A method by its name, as it writes a product to memory.
type Multiply = Box<dyn Fn(&mut [f32], Factor<'_>, Factor<'_>, Output<'_>) + Send + Sync>;

/// The instruction `TDPBF16PS` in software, on panels of tiles.
#[cfg(target_arch = "x86_64")]
unsafe fn emulated(
    a: *const u8,
    b: *const u8,
    steps: usize,
    (rows, _cols): (usize, usize),
    start: blocks::Start,
    c: *mut f32,
    c_stride: usize,
) {
    let bf16_at = |at: *const u8, i: usize| unsafe { at.cast::<bf16>().add(i).read().to_f32() };
    for row in 0..rows {
        for col in 0..32 {
            let mut sum =
                if start.at.is_null() { 0.0 } else { unsafe { start.at.add(row * start.stride + col).read() } };
            for step in 0..steps {
                // Rows 16 and more are in the second tile of `a`, columns 16 and more in that of
                // `b`.
                let (a, b) = unsafe {
                    (a.add(step * 2048 + row / 16 * 1024 + row % 16 * 64), b.add(step * 2048 + col / 16 * 1024))
                };
                for k in 0..32 {
                    sum += bf16_at(a, k) * bf16_at(b, k / 2 * 32 + col % 16 * 2 + k % 2);
                }
            }
            unsafe { c.add(row * c_stride + col).write(sum) };
        }
    }
}

/// Says once what this CPU cannot run.
#[cfg(target_arch = "x86_64")]
fn skipped(what: &str) {
    static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap();
    if !told.iter().any(|told| told == what) {
        println!("{what}");
        told.push(what.to_owned());
    }
}

/// The methods for `rounding` that this CPU can run.
fn methods(rounding: Rounding) -> Vec<(&'static str, Multiply)> {
    let by_gemm: Multiply = Box::new(move |out, a, b, into| {
        // SAFETY: `out` is as large as the product.
        unsafe { multiply_by_gemm(Destination::new(out.as_mut_ptr(), b.size().1), a, b, into, rounding, true) }
    });
    let mut all = vec![("gemm", by_gemm)];
    #[cfg(target_arch = "x86_64")]
    {
        use panels::Method;
        let mut finished: Vec<(&str, Multiply)> = Vec::new();
        let mut few = None;
        let mut add = |name, method| {
            let multiply: Multiply = Box::new(move |out, a, b, into| {
                // SAFETY: `out` is as large as the product, and the CPU has been asked.
                unsafe {
                    let out = Destination::new(out.as_mut_ptr(), b.size().1);
                    panels::multiply(method, out, [a, b], into, None, rounding, true);
                }
            });
            all.push((name, multiply));
        };
        let mut add_finished = |name, method| {
            let multiply: Multiply = Box::new(move |out, a, b, into| {
                let (width, out) = (b.size().1, std::sync::Mutex::new(out));
                let finish = |block: Sums<'_>| {
                    assert!(block.row.is_multiple_of(BLOCK_ROWS) && block.rows <= BLOCK_ROWS);
                    let mut out = out.lock().unwrap();
                    for (row, sums) in block.values.chunks_exact(block.stride).enumerate() {
                        let at = (block.row + row) * width + block.col;
                        for (column, (out, sum)) in out[at..].iter_mut().zip(&sums[..block.cols]).enumerate() {
                            *out = match into {
                                Output::Overwrite => *sum,
                                Output::Add => *out + sum,
                                Output::Bias(bias) => bias[block.col + column] + sum,
                            };
                        }
                    }
                };
                // SAFETY: the CPU has been asked.
                unsafe { panels::finished(method, a, b, rounding, true, &finish) };
            });
            finished.push((name, multiply));
        };
        match Method::on(Unit::F32) {
            Some(method) => {
                add("f32 of AVX-512", method);
                let of_few: Multiply = Box::new(move |out, a, b, into| {
                    // SAFETY: `out` is as large as the product, and the CPU has been asked.
                    unsafe {
                        let out = Destination::new(out.as_mut_ptr(), b.size().1);
                        let (x, (rows, inner)) = (row_major(a, rounding), a.size());
                        few::multiply(out, Matrix::new(&x, rows, inner), b, into, rounding, true);
                    }
                });
                few = Some(of_few);
            }
            None => skipped("no AVX-512 here: its kernels of f32 are not run"),
        }
        if rounding == Rounding::Bf16 {
            for unit in [Unit::Avx512Bf16, Unit::AmxBf16] {
                match units::choose(Some(unit)) {
                    Ok(_) => {
                        add(unit.name(), Method::on(unit).unwrap());
                        add_finished("blocks of the unit", Method::on(unit).unwrap());
                    }
                    Err(error) => skipped(&format!("{} is not run: {error}", unit.name())),
                }
            }
            if units::choose(Some(Unit::Avx512Bf16)).is_ok() {
                add("amx-bf16, emulated", Method::Tiles { kernel: emulated, is_amx: false });
                add_finished("blocks, emulated", Method::Tiles { kernel: emulated, is_amx: false });
            }
        }
        all.append(&mut finished);
        all.extend(few.map(|multiply| (FEW_ROWS, multiply)));
    }
    all
}

/// The method that not every product is made by.
const FEW_ROWS: &str = "few rows";

/// Whether the method `name` makes the product of `a` and `b`.
fn makes(name: &str, a: Factor<'_>, b: Factor<'_>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if name == FEW_ROWS {
        return few::has_few_rows(a, b);
    }
    let _ = (a, b);
    true
}

/// The product in f64 of rounded operands on top of `start`, and the sums of the terms' magnitudes.
fn reference(
    [a, b]: [&[f32]; 2],
    (m, n, k): (usize, usize, usize),
    start: &dyn Fn(usize, usize) -> f32,
    rounding: Rounding,
) -> Vec<(f64, f64)> {
    let [a, b] = [a, b].map(|x| x.iter().map(|x| rounded(*x, rounding)).collect::<Vec<_>>());
    let cells = (0..m).flat_map(|i| (0..n).map(move |j| (i, j)));
    let cell = |(i, j)| {
        let first = f64::from(start(i, j));
        (0..k).fold((first, first.abs()), |(sum, size), l| {
            let term = a[i * k + l] * b[l * n + j];
            (sum + term, size + term.abs())
        })
    };
    cells.map(cell).collect()
}

fn transposed<T: Copy>(x: &[T], rows: usize, cols: usize) -> Vec<T> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| x[r * cols + c])).collect()
}

/// All methods on factors of `m x k` and `k x n` in f32 and in the narrow type, either of them as
/// its transpose in memory (the forward product of a linear layer, the gradient of its input and
/// that of its weight among them), written, added to and with a bias.
fn check(rounding: Rounding, (m, n, k): (usize, usize, usize)) {
    let (a, b, before, bias) = (noise(m * k, 1), noise(k * n, 2), noise(m * n, 3), noise(n, 4));
    let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
    let narrow = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    let half = |x: &[f32]| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    let (a16, b16, bt16) = (narrow(&a), narrow(&b), narrow(&bt));
    let (a_half, b_half, bt_half) = (half(&a), half(&b), half(&bt));
    // Rows with what belongs to others behind them.
    const GAP: usize = 5;
    let apart = |x: &[f32], width: usize| {
        x.chunks_exact(width).flat_map(|row| [row, &[f32::NAN; GAP]].concat()).collect::<Vec<_>>()
    };
    let (b_apart, bt_apart) = (apart(&b, n), apart(&bt, k));
    let mut left = vec![Factor::F32(Matrix::new(&a, m, k)), Factor::F32(Matrix::new(&at, k, m).t())];
    let mut right = vec![
        Factor::F32(Matrix::new(&b, k, n)),
        Factor::F32(Matrix::new(&bt, n, k).t()),
        Factor::F32(Matrix::strided(&b_apart, k, n, n + GAP)),
        Factor::F32(Matrix::strided(&bt_apart, n, k, k + GAP).t()),
    ];
    match rounding {
        Rounding::F32 => {}
        Rounding::Bf16 => {
            left.push(Factor::Bf16(Matrix::new(&a16, m, k)));
            right.extend([Factor::Bf16(Matrix::new(&b16, k, n)), Factor::Bf16(Matrix::new(&bt16, n, k).t())]);
        }
        Rounding::F16 => {
            left.push(Factor::F16(Matrix::new(&a_half, m, k)));
            right.extend([Factor::F16(Matrix::new(&b_half, k, n)), Factor::F16(Matrix::new(&bt_half, n, k).t())]);
        }
    }
    let of = |start: &dyn Fn(usize, usize) -> f32| reference([&a, &b], (m, n, k), start, rounding);
    let outputs = [
        (Output::Overwrite, of(&|_, _| 0.0)),
        (Output::Add, of(&|i, j| before[i * n + j])),
        (Output::Bias(&bias), of(&|_, j| bias[j])),
    ];
    for (name, multiply) in methods(rounding) {
        for (i, a) in left.iter().enumerate() {
            for (j, b) in right.iter().enumerate().filter(|(_, b)| makes(name, *a, **b)) {
                for (l, (into, expected)) in outputs.iter().enumerate() {
                    let mut c = match into {
                        Output::Add => before.clone(),
                        _ => vec![f32::NAN; m * n],
                    };
                    multiply(&mut c, *a, *b, *into);
                    for (at, (c, (value, size))) in c.iter().zip(expected).enumerate() {
                        // Of k roundings of 6e-8 each, relative to the sum of the terms'
                        // magnitudes, most cancel.
                        let bound = (2e-7 + 3e-8 * (k as f64).sqrt()) * size;
                        let off = (f64::from(*c) - value).abs();
                        assert!(
                            off <= bound,
                            "{name} {rounding:?} {m} x {n} x {k}, factors {i} and {j}, output {l}, element {at}: {c}, not \
                             {value}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_awkward_sizes() {
    for rounding in [Rounding::F32, Rounding::Bf16, Rounding::F16] {
        let sizes = [1, 15, 17, 33];
        for m in sizes {
            for n in sizes {
                sizes.into_iter().for_each(|k| check(rounding, (m, n, k)));
            }
        }
        for size in [(12, 32, 64), (13, 97, 31), (101, 67, 257), (8, 4, 1), (5, 37, 3)] {
            check(rounding, size);
        }
        // Few rows by strips of 16 registers and fewer, and from 65,536 elements on by several
        // tasks.
        for size in
            [(1, 255, 37), (2, 263, 49), (3, 130, 16), (1, 1100, 129), (2, 1100, 131), (4, 1031, 67), (8, 497, 140)]
        {
            check(rounding, size);
        }
    }
}

#[test]
fn products_of_long_sums_and_of_several_tasks() {
    for rounding in [Rounding::F32, Rounding::Bf16] {
        for size in [(3, 5, 8209), (67, 35, 4099), (1031, 41, 263), (37, 1033, 131)] {
            check(rounding, size);
        }
    }
}

/// On one thread, between columns that are not the product's.
#[test]
fn rows_of_a_destination_with_gaps() {
    const GAP: usize = 3;
    for rounding in [Rounding::F32, Rounding::Bf16, Rounding::F16] {
        for (m, n, k) in [(1, 1, 1), (17, 33, 5), (131, 64, 19), (35, 70, 200)] {
            let (a, b, before) = (noise(m * k, 11), noise(k * n, 12), noise(m * (n + GAP), 13));
            for (into, start) in [(Output::Overwrite, 0.0), (Output::Add, 1.0)] {
                let expected = reference([&a, &b], (m, n, k), &|i, j| start * before[i * (n + GAP) + j], rounding);
                let mut c = before.clone();
                let (fa, fb) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
                // SAFETY: the destination is exclusively borrowed and has the rows of the product.
                unsafe { multiply_rows(c.as_mut_ptr(), n + GAP, fa, fb, into, rounding) };
                for (i, (c, before)) in c.chunks_exact(n + GAP).zip(before.chunks_exact(n + GAP)).enumerate() {
                    assert_eq!(c[n..], before[n..], "{rounding:?} {m} x {n} x {k}, row {i}");
                    for (c, (value, size)) in c.iter().zip(&expected[i * n..][..n]) {
                        // As in `check`.
                        assert!((f64::from(*c) - value).abs() <= (2e-7 + 3e-8 * (k as f64).sqrt()) * size);
                    }
                }
            }
        }
    }
}

/// The first rows and columns of a matrix that was packed once, in every form that this CPU has and
/// in the emulated one, as right factors on one thread. What is behind them is no number; of the
/// left factor, which lies in memory in either direction, neither is what surrounds it.
#[cfg(target_arch = "x86_64")]
#[test]
fn parts_of_a_packed_factor() {
    use panels::Method;
    const GAP: usize = 5;
    let (inner, width) = (450, 77);
    let mut b = noise(inner * width, 15);
    b[416 * width..].fill(f32::NAN);
    let bt = transposed(&b, inner, width);
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let of_unit = (rounding == Rounding::Bf16).then(|| Method::on(unit().unwrap())).flatten();
        let emulated = (rounding == Rounding::Bf16 && pack::has_avx512())
            .then_some(Method::Tiles { kernel: emulated, is_amx: false });
        let in_f32 = pack::has_avx512().then_some(Method::F32);
        for right in [Matrix::new(&b, inner, width), Matrix::new(&bt, width, inner).t()] {
            let pack = |method: Method| {
                // SAFETY: the CPU has been asked.
                unsafe { panels::whole(method, right.into(), rounding, pack::Side::Right, pack::Buffer::new(), false) }
            };
            let kept = [in_f32, of_unit, emulated.filter(|_| is_x86_feature_detected!("avx512bf16"))];
            let kept = kept.into_iter().flatten().map(pack).collect::<Vec<_>>();
            for (m, n, k) in
                [(1, 1, 1), (3, 32, 96), (12, 33, 31), (26, 64, 32), (41, 77, 384), (96, 64, 385), (7, 31, 416)]
            {
                let x: Vec<f32> = noise(m * k, 16).into_iter().map(|x| rounded(x, rounding) as f32).collect();
                let xt = transposed(&x, m, k);
                let (row, column) = (k + GAP, m.next_multiple_of(4) + GAP);
                let (mut rows, mut columns) = (vec![f32::NAN; m.next_multiple_of(4) * row], vec![f32::NAN; k * column]);
                rows.chunks_exact_mut(row).zip(x.chunks_exact(k)).for_each(|(to, x)| to[..k].copy_from_slice(x));
                columns.chunks_exact_mut(column).zip(xt.chunks_exact(m)).for_each(|(to, x)| to[..m].copy_from_slice(x));
                let lefts = [Matrix::strided(&rows, m, k, row), Matrix::strided(&columns, k, m, column).t()];
                let values: Vec<f32> = (0..k * n).map(|i| b[i / n * width + i % n]).collect();
                let before = noise(m * (n + GAP), 19);
                for (into, start) in [(Output::Overwrite, 0.0), (Output::Add, 1.0)] {
                    let expected =
                        reference([&x, &values], (m, n, k), &|i, j| start * before[i * (n + GAP) + j], rounding);
                    let plain = Factor::F32(Matrix { rows: k, cols: n, ..right });
                    let parts = kept.iter().map(|kept| Factor::Packed(kept.whole().first(n, k)));
                    let found = parts.chain([plain]).flat_map(|part| lefts.map(|left| (part, left)));
                    let found = found.map(|(part, left)| {
                        let mut c = before.clone();
                        // SAFETY: the destination is exclusively borrowed and has the rows of the
                        // product.
                        unsafe { multiply_rounded_rows(c.as_mut_ptr(), n + GAP, left, part, into, rounding) };
                        c
                    });
                    let found = found.collect::<Vec<_>>();
                    for c in &found {
                        for (i, (c, before)) in c.chunks_exact(n + GAP).zip(before.chunks_exact(n + GAP)).enumerate() {
                            assert_eq!(c[n..], before[n..], "{rounding:?} {m} x {n} x {k}, row {i}");
                            for (c, (value, size)) in c.iter().zip(&expected[i * n..][..n]) {
                                // As in `check`.
                                let error = (f64::from(*c) - value).abs();
                                assert!(error <= (2e-7 + 3e-8 * (k as f64).sqrt()) * size, "{m} x {n} x {k}");
                            }
                        }
                    }
                    if let Some(method) = in_f32 {
                        let (mut c, out) = (before.clone(), found[0].clone());
                        let (to, part) =
                            (Destination::new(c.as_mut_ptr(), n + GAP), Factor::Packed(kept[0].whole().first(n, k)));
                        // SAFETY: as above, and the CPU has been asked.
                        unsafe {
                            panels::multiply(
                                method,
                                to,
                                [Matrix::new(&x, m, k).into(), part],
                                into,
                                None,
                                rounding,
                                false,
                            )
                        };
                        assert!(c == out && c == found[1], "{rounding:?} {m} x {n} x {k}: packed on the left too");
                    }
                }
            }
        }
    }
}

/// A left factor that could not be read in fours is refused, whatever the right one is.
#[test]
fn a_factor_that_ends_with_its_rows_is_refused() {
    let (x, b) = (noise(3 * 8, 20), noise(8 * 32, 21));
    let multiply = |x: Matrix<'_>, packed: bool| {
        let (b, mut repacked, mut out) = (Matrix::new(&b, 8, 32), Repacked::default(), vec![0.0; 3 * 32]);
        repacked.pack(b, Rounding::F32);
        let b = repacked.first(b, packed);
        // SAFETY: the destination is exclusively borrowed and has the rows of the product.
        unsafe { multiply_rounded_rows(out.as_mut_ptr(), 32, x, b, Output::Overwrite, Rounding::F32) };
        out
    };
    let behind = [x.as_slice(), &[0.0; 8]].concat();
    let right = multiply(Matrix::strided(&behind, 3, 8, 8), false);
    for packed in [true, false] {
        for (out, right) in multiply(Matrix::strided(&behind, 3, 8, 8), packed).iter().zip(&right) {
            assert!((out - right).abs() < 1e-5); // 8 terms below 1, summed in another order
        }
        for x in [Matrix::new(&x, 3, 8), Matrix::new(&x, 8, 3).t()] {
            let refused = std::panic::catch_unwind(|| multiply(x, packed)).unwrap_err();
            assert_eq!(refused.downcast_ref(), Some(&"rows of a factor that are read in fours"));
        }
    }
}

/// Also of a product whose packed factor comes in several pieces.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (m, n, k) in [(577, 193, 401), (193, 1201, 97), (200, 500, 4500), (1, 1201, 97), (2, 1201, 97), (8, 1201, 97)] {
        let (a, b) = (noise(m * k, 5), noise(k * n, 6));
        let bt = transposed(&b, k, n);
        let rights = [Matrix::new(&b, k, n).into(), Factor::F32(Matrix::new(&bt, n, k).t())];
        for rounding in [Rounding::F32, Rounding::Bf16] {
            for (name, multiply) in methods(rounding) {
                let left = Matrix::new(&a, m, k).into();
                for right in rights.into_iter().filter(|b| !name.contains("emulated") && makes(name, left, *b)) {
                    let [one, two, three] = [1, 2, 3].map(|threads| {
                        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                        let mut c = vec![0.0; m * n];
                        pool.install(|| multiply(&mut c, left, right, Output::Overwrite));
                        c
                    });
                    assert!(one == two && two == three, "{name} {rounding:?} {m} x {n} x {k}");
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn tall_gradients_and_products_with_a_transpose_are_made_in_own_panels_in_f32() {
    let (tokens, rows, cols) = (600, 307, 40);
    let (x, dy) = (noise(tokens * rows, 7), noise(tokens * cols, 8));
    let (x, dy) = (Matrix::new(&x, tokens, rows), Matrix::new(&dy, tokens, cols));
    let has = |a: Matrix<'_>, b: Matrix<'_>| panels::Method::of(a.into(), b.into(), Rounding::F32, true).is_some();
    assert_eq!(has(x.t(), dy), pack::has_avx512());
    assert!(!has(dy.t(), x), "it is wide");
    let (y, weight) = (noise(rows * tokens, 9), noise(tokens * cols, 10));
    let (y, weight) = (Matrix::new(&y, rows, tokens), Matrix::new(&weight, tokens, cols));
    assert!(!has(y, weight), "its left factor does not lie transposed");
    assert_eq!(has(dy, weight.t()), pack::has_avx512(), "its right factor does");
    let (mut own, mut crates) = (vec![1.0; rows * cols], vec![1.0; rows * cols]);
    multiply(&mut own, x.t(), dy, Output::Add, Rounding::F32);
    // SAFETY: the destination is exclusively borrowed and as large as the product.
    let by_gemm = Destination::new(crates.as_mut_ptr(), cols);
    unsafe { multiply_by_gemm(by_gemm, x.t().into(), dy.into(), Output::Add, Rounding::F32, true) };
    for (own, other) in own.iter().zip(&crates) {
        // 600 terms of up to 1, each rounded to 6e-8 of sums of about 20.
        assert!((own - other).abs() < 1e-4, "{own} and {other}");
    }
}

#[test]
fn what_is_no_number_stays_so() {
    for rounding in [Rounding::F32, Rounding::Bf16, Rounding::F16] {
        for (name, multiply) in methods(rounding) {
            // Bits of a NaN that bf16 does not have, and a number that rounds to infinity in f16.
            let nan = f32::from_bits(0x7f80_0001);
            for (x, expected) in [(nan, f32::NAN), (f32::INFINITY, f32::INFINITY), (-1e38, f32::NEG_INFINITY)] {
                let (a, b) = (vec![x; 3 * 20], vec![1.0; 20 * 35]);
                for right in [Matrix::new(&b, 20, 35).into(), Factor::F32(Matrix::new(&b, 35, 20).t())] {
                    for m in 1..=3 {
                        let left = Matrix::new(&a[..m * 20], m, 20).into();
                        if !makes(name, left, right) {
                            continue;
                        }
                        let mut c = vec![0.0; m * 35];
                        multiply(&mut c, left, right, Output::Overwrite);
                        for c in c {
                            let is_right = if expected.is_nan() { c.is_nan() } else { c == expected };
                            assert!(is_right, "{name} {rounding:?}: {c} for {x}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_product_without_terms_is_its_beginning() {
    let (a, b, bias) = (Vec::<f32>::new(), Vec::<f32>::new(), [1.0, 2.0, 3.0]);
    let (a, b) = (Matrix::new(&a, 2, 0), Matrix::new(&b, 0, 3));
    for rounding in [Rounding::F32, Rounding::Bf16] {
        assert_eq!(product(a, b, None, rounding), [0.0; 6]);
        assert_eq!(product(a, b, Some(&bias), rounding), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        let mut c = vec![5.0; 6];
        multiply(&mut c, a, b, Output::Add, rounding);
        assert_eq!(c, [5.0; 6]);
    }
}

#[test]
fn the_peak_is_that_of_the_unit_of_the_products() {
    for (dtype, of) in [(FloatDType::F32, Unit::F32), (FloatDType::F16, Unit::F32), (FloatDType::BF16, unit().unwrap())]
    {
        let (unit, gflops) = peak_gflops(dtype).unwrap();
        assert_eq!(unit, of);
        // A core does more than 0.1 GFLOP/s and less than 100 TFLOP/s.
        assert!((0.1..1e5 * rayon::current_num_threads() as f64).contains(&gflops), "{unit:?}: {gflops}");
    }
}

#[test]
fn a_lower_unit_may_be_asked_for_and_a_higher_one_is_refused() {
    assert_eq!(units::choose(Some(Unit::F32)).unwrap(), (Unit::F32, None));
    let (best, slower) = units::choose(None).unwrap();
    assert!(slower.is_none_or(|slower| best == Unit::F32 && slower == Unit::Avx512Bf16), "{slower:?}");
    for unit in [Unit::F32, Unit::Avx512Bf16, Unit::AmxBf16] {
        match units::choose(Some(unit)) {
            Ok(chosen) => assert_eq!(chosen, (unit, None)),
            Err(error) => {
                assert!(unit > best, "{unit:?} is refused, and {best:?} is there: {error}");
                let told = format!("KILN_CPU_PRODUCTS={}: this CPU lacks it", unit.name());
                assert!(error.to_string().contains(&told), "{error}");
            }
        }
    }
    let error = "avx2".parse::<Unit>().unwrap_err().to_string();
    assert!(error.contains("KILN_CPU_PRODUCTS=avx2: expected one of amx-bf16, avx512-bf16, f32"), "{error}");
}

/// Products with a packed right factor are those with the factor itself, to the bit.
#[test]
fn packed_factors_give_equal_products() {
    let is_packed = unit().unwrap().is_faster_than_f32();
    for (m, n, k) in [(1, 1, 1), (1, 17, 33), (9, 3001, 64), (15, 1, 31), (33, 97, 64), (131, 67, 1031), (257, 769, 97)]
    {
        let (a, b, bias) = (noise(m * k, 1), noise(k * n, 2), noise(n, 4));
        let (bt, b16) = (transposed(&b, k, n), b.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
        for matrix in [
            Factor::F32(Matrix::new(&b, k, n)),
            Factor::F32(Matrix::new(&bt, n, k).t()),
            Factor::Bf16(Matrix::new(&b16, k, n)),
        ] {
            let packed = Packed::default();
            assert!(matches!(packed.right(matrix, Rounding::F32), Factor::F32(_) | Factor::Bf16(_)));
            assert_eq!(packed.bytes(), 0);
            for _ in 0..2 {
                let right = packed.right(matrix, Rounding::Bf16);
                assert_eq!(matches!(right, Factor::F32(_) | Factor::Bf16(_)), !is_packed);
                let left = Matrix::new(&a, m, k);
                for bias in [None, Some(&bias[..])] {
                    let expected = product(left, matrix, bias, Rounding::Bf16);
                    assert!(product(left, right, bias, Rounding::Bf16) == expected, "{m} x {n} x {k}");
                }
                let (mut sums, mut expected) = (noise(m * n, 3), noise(m * n, 3));
                multiply(&mut sums, left, right, Output::Add, Rounding::Bf16);
                multiply(&mut expected, left, matrix, Output::Add, Rounding::Bf16);
                assert!(sums == expected, "{m} x {n} x {k}, added");
            }
            let bytes = 2 * n.next_multiple_of(32) * k.next_multiple_of(32);
            assert_eq!(packed.bytes(), if is_packed { bytes } else { 0 });
        }
    }
}

/// So that in bf16 a text is continued alone as among others. In f32 the `gemm` crate makes most
/// products of more rows, and rounds otherwise.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_row_alone_is_to_the_bit_that_row_among_many() {
    let (m, n, k) = (19, 309, 133);
    let (a, b, bias) = (noise(m * k, 1), noise(k * n, 2), noise(n, 4));
    let bt = transposed(&b, k, n);
    let [b16, bt16] = [&b, &bt].map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
    let rights = [
        Factor::F32(Matrix::new(&b, k, n)),
        Factor::F32(Matrix::new(&bt, n, k).t()),
        Factor::Bf16(Matrix::new(&b16, k, n)),
        Factor::Bf16(Matrix::new(&bt16, n, k).t()),
    ];
    let rows = |from: usize, count: usize| Factor::F32(Matrix::new(&a[from * k..][..count * k], count, k));
    let check = |name: &str, b: Factor<'_>, many: &Multiply, few: &Multiply, held: usize| {
        let mut expected = vec![f32::NAN; m * n];
        many(&mut expected, rows(0, m), b, Output::Bias(&bias));
        for count in 1..=held {
            for from in (0..=m - count).step_by(3) {
                let mut alone = vec![f32::NAN; count * n];
                few(&mut alone, rows(from, count), b, Output::Bias(&bias));
                assert!(alone == expected[from * n..][..count * n], "{name}: rows {from} to {}", from + count);
            }
        }
    };
    for rounding in [Rounding::F32, Rounding::Bf16] {
        let all = methods(rounding);
        let of = |name: &str| all.iter().find(|(other, _)| *other == name).map(|(_, multiply)| multiply);
        for (i, b) in rights.into_iter().enumerate() {
            if let (Some(many), Some(few)) = (of("f32 of AVX-512"), of(FEW_ROWS)) {
                check("f32", b, many, few, if i % 2 == 1 { 8 } else { 2 });
            }
            if let Some(tiles) = of(Unit::Avx512Bf16.name()) {
                check("tiles", b, tiles, tiles, 8);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn few_rows_are_multiplied_as_they_lie_where_products_are_made_in_f32() {
    let (a, b) = (noise(9 * 40, 1), noise(40 * 300, 2));
    let half = b.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>();
    let left = |rows: usize| Factor::F32(Matrix::new(&a[..rows * 40], rows, 40));
    let (rows, columns) = (Factor::F32(Matrix::new(&b, 40, 300)), Factor::F32(Matrix::new(&b, 300, 40).t()));
    let has = pack::has_avx512();
    let in_f32 = has && unit().unwrap() == Unit::F32;
    for (right, most) in [(rows, 2), (columns, 8)] {
        for count in 1..=9 {
            assert_eq!(few::takes(left(count), right, Rounding::F32), has && count <= most, "{count}");
            assert_eq!(few::takes(left(count), right, Rounding::F16), has && count <= most, "{count}");
            assert_eq!(few::takes(left(count), right, Rounding::Bf16), in_f32 && count <= most, "{count}");
        }
    }
    assert_eq!(few::takes(left(1), Factor::F16(Matrix::new(&half, 40, 300)), Rounding::Bf16), has);
    let packed = Packed::default();
    assert!(unit().unwrap() == Unit::F32 || !few::takes(left(1), packed.right(rows, Rounding::Bf16), Rounding::Bf16));
    // Between columns that are not the product's, and by the product itself.
    for (right, count) in [(rows, 1), (rows, 2), (columns, 5)] {
        let mut expected = vec![0.0; count * 300];
        multiply(&mut expected, left(count), right, Output::Overwrite, Rounding::F32);
        if has {
            let mut c = vec![7.0; count * 303];
            let out = Destination::new(c.as_mut_ptr(), 303);
            // SAFETY: `c` has so many rows, and the CPU has been asked.
            unsafe {
                let x = Matrix::new(&a[..count * 40], count, 40);
                few::multiply(out, x, right, Output::Overwrite, Rounding::F32, true);
            }
            for (row, expected) in c.chunks_exact(303).zip(expected.chunks_exact(300)) {
                assert!(row[..300] == *expected && row[300..] == [7.0; 3]);
            }
        }
    }
}

/// A product beside another one is added as by a call of its own, which may multiply by another
/// method and so round in another order; a left factor that is packed once gives the products of
/// the factor itself, to the bit.
#[test]
fn a_product_beside_another_is_the_sum_of_both() {
    for (m, n, k, r) in
        [(1, 1, 1, 1), (33, 16, 64, 5), (31, 17, 33, 16), (131, 67, 1031, 40), (257, 769, 97, 1), (65, 97, 700, 33)]
    {
        let [a, b, c, d, bias] =
            [(m * k, 1), (k * n, 2), (m * r, 3), (r * n, 4), (n, 5)].map(|(n, seed)| noise(n, seed));
        let bt = transposed(&b, k, n);
        let [b16, d16] = [&b, &d].map(|x| x.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>());
        let [b16, d16] = [Factor::F16(Matrix::new(&b16, k, n)), Factor::F16(Matrix::new(&d16, r, n))];
        let [a, c, d] = [(&a, m, k), (&c, m, r), (&d, r, n)].map(|(x, m, n)| Factor::F32(Matrix::new(x, m, n)));
        let [b, bt] = [Matrix::new(&b, k, n), Matrix::new(&bt, n, k).t()].map(Factor::F32);
        // Tiles are not made of f16.
        for (b, d) in [(b, d), (bt, d), (b16, d), (b, d16)] {
            for rounding in [Rounding::F32, Rounding::Bf16, Rounding::F16] {
                for bias in [None, Some(&bias[..])] {
                    let mut expected = product(a, b, bias, rounding);
                    multiply(&mut expected, c, d, Output::Add, rounding);
                    let packed = Packed::default();
                    let right = packed.right(b, rounding);
                    let sum = |left: Factor<'_>| sum_of_products([left, right], bias, [c, d], rounding);
                    let at_once = sum(a);
                    // Of k + r roundings of 6e-8 each, relative to terms of at most 1, most cancel.
                    let apart = 1e-6 * (k + r) as f32;
                    let is_close = at_once.iter().zip(&expected).all(|(x, y)| (x - y).abs() <= apart);
                    assert!(is_close, "{rounding:?}, {m} x {n} x {k}, {r}");
                    let packed_once = with_left(a, [right, d], rounding, sum);
                    assert!(packed_once == at_once, "{rounding:?}, {m} x {n} x {k}, {r}, packed once");
                }
            }
            #[cfg(target_arch = "x86_64")]
            if units::choose(Some(Unit::Avx512Bf16)).is_ok() {
                let method = panels::Method::Tiles { kernel: emulated, is_amx: false };
                if !method.takes(&[b, d]) {
                    continue;
                }
                let multiply = |out: &mut [f32], factors, into, beside| {
                    // SAFETY: `out` is as large as the product, and the CPU has been asked.
                    unsafe {
                        let out = Destination::new(out.as_mut_ptr(), n);
                        panels::multiply(method, out, factors, into, beside, Rounding::Bf16, true);
                    }
                };
                let (mut expected, mut sum) = (noise(m * n, 6), noise(m * n, 6));
                multiply(&mut expected, [a, b], Output::Add, None);
                multiply(&mut expected, [c, d], Output::Add, None);
                multiply(&mut sum, [a, b], Output::Add, Some([c, d]));
                assert!(sum == expected, "emulated, {m} x {n} x {k}, {r}");
            }
        }
    }
}
