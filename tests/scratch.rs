use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use kiln::data::{Batch, Labels};
use kiln::task::{DeviceBatch, Task};
use kiln_models::weights::*;
use kiln_models::*;
use serde_json::Value;

struct G<'a>(&'a GradientsParams, std::collections::HashMap<burn::module::ParamId, Parameter>, Vec<NamedTensor>);
impl ModuleVisitor for G<'_> {
    fn visit_float<const D: usize>(&mut self, p: &Param<Tensor<D>>) {
        if let Some(g) = self.0.get::<D>(p.id) { self.2.push(to_hf_layout(&self.1[&p.id], g).unwrap()); } else { println!("no grad {}", self.1[&p.id].name) }
    }
}
#[test]
fn oracle() {
    let root = std::path::Path::new("/work/shared/oracle/cases");
    for (case, task) in [("gpt2-lm", Task::Clm), ("gpt2-lm-padded", Task::Clm), ("bert-mlm", Task::Mlm), ("bert-classification", Task::SequenceClassification), ("bert-regression", Task::Regression), ("bert-qa", Task::QuestionAnswering)] {
        let dir = root.join(case);
        let (config, unknown) = ModelConfig::from_json(&std::fs::read_to_string(dir.join("model/config.json")).unwrap()).unwrap();
        println!("{case} unknown {unknown:?}");
        let device = Device::flex().autodiff();
        let model = Model::new(&config, task.head(), &device).unwrap();
        let (model, report) = load(model, &dir.join("model")).unwrap();
        println!("{report:?}");
        let b: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("batch.json")).unwrap()).unwrap();
        let flat = |k: &str| -> Option<Vec<i32>> { b.get(k).map(|v| v.as_array().unwrap().iter().flat_map(|r| match r { Value::Array(a) => a.iter().map(|x| x.as_i64().unwrap() as i32).collect(), x => vec![x.as_f64().unwrap() as i32] }).collect()) };
        let rows = b["input_ids"].as_array().unwrap().len();
        let ids = flat("input_ids").unwrap();
        let labels = match task { Task::Clm | Task::Mlm => Labels::Tokens(flat("labels").unwrap()), Task::SequenceClassification => Labels::Classes(flat("labels").unwrap()),
            Task::Regression => Labels::Values(b["labels"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()),
            Task::QuestionAnswering => Labels::Spans { start: flat("start_positions").unwrap(), end: flat("end_positions").unwrap() } };
        let mask: Vec<bool> = flat("attention_mask").unwrap().iter().map(|x| *x == 1).collect();
        let batch = Batch { rows, seq_len: ids.len() / rows, input_ids: ids, attention_mask: mask.iter().any(|m| !m).then_some(mask), token_type_ids: flat("token_type_ids"), labels, num_tokens: 0 };
        let db = DeviceBatch::new(task, &batch, &device).unwrap();
        let logits = model.forward(db.input.clone(), true);
        let loss = db.loss(logits.clone()).unwrap();
        let mean = loss.sum * (1.0 / loss.count as f64);
        let grads = GradientsParams::from_grads(mean.backward(), &model);
        let exp = std::fs::read(dir.join("expected.safetensors")).unwrap();
        let exp = safetensors::SafeTensors::deserialize(&exp).unwrap();
        let get = |n: &str| -> Vec<f32> { exp.tensor(n).unwrap_or_else(|e| panic!("{n} {e}")).data().chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect() };
        let l: f32 = mean.into_scalar();
        println!("loss {l} {}", get("loss")[0]);
        let lv: Vec<f32> = logits.try_into_vec_as().unwrap();
        if task != Task::QuestionAnswering { let e = get("logits"); println!("logits {}", lv.iter().zip(&e).map(|(a, b)| (a - b).abs()).fold(0., f32::max)); }
        let mut v = G(&grads, parameters(&model).into_iter().map(|p| (p.id, p)).collect(), vec![]);
        model.visit(&mut v);
        let mut worst = (0.0, String::new());
        for t in &v.2 { let e = get(&format!("grad.{}", t.name));
            let d: f64 = t.data.iter().zip(&e).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>().sqrt(); let n: f64 = e.iter().map(|b| (*b as f64).powi(2)).sum::<f64>().sqrt();
            let r = d / n.max(1e-12); if r > worst.0 && n > 1e-6 { worst = (r, t.name.clone()); } else if n <= 1e-6 { println!("tiny {} {n} {d}", t.name) } }
        println!("grads {} worst {worst:?}", v.2.len());
    }
}
