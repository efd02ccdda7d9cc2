// SPDX-License-Identifier: Apache-2.0
// A drafter step, forward and backward, on the inputs of bench/step_specforge.py, against the
// products that it must take and against the planner:
//   build/release/bin/bench_step DIR DIR/batch-1024.safetensors [GRADIENTS [float32|bfloat16 [RUNS]]]
#include "draftsmith/train/step.h"

#include <cmath>
#include <cstdio>

#include "draftsmith/data/draft_blocks.h"
#include "draftsmith/formats/safetensors.h"
#include "draftsmith/memory/planner.h"

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

using torch::Tensor;

/// Context columns that attention computes products with, over blocks.
double count_visible(const data::DraftBlocks& blocks) {
  const auto lengths = blocks.layout.anchors - blocks.layout.context_begin;
  return lengths.sum().item<double>() +
         static_cast<double>(lengths.numel() * blocks.layout.block_size);
}

/// Seconds of the head's products, forward and back, for `rows` supervised rows. They run at a rate
/// of their own: the head is larger than any cache.
double measure_head(const Tensor& lm_head, int64_t rows) {
  constexpr int64_t kRows = 512;
  const auto states = random_bfloat16({kRows, lm_head.size(1)}, 1, 3);
  const auto logits = random_bfloat16({kRows, lm_head.size(0)}, 1, 4);
  std::vector<Contender> products = {
      {"forward", [&] { torch::mm(states, lm_head.t()); }},
      {"back", [&] { torch::mm(logits, lm_head); }}};
  measure(products, 5);
  return (products[0].time() + products[1].time()) * static_cast<double>(rows) / kRows;
}

void run(
    const std::string& model,
    const std::string& batch_file,
    const std::string& output,
    torch::ScalarType dtype,
    int runs) {
  const auto drafter = model::Drafter::load(model, dtype);
  const auto weights = formats::SafetensorsReader::open_folder(model);
  const auto file = formats::SafetensorsReader::open_file(batch_file);
  const auto embedding = weights.tensor("embed_tokens.weight");
  const auto lm_head = weights.tensor("lm_head.weight").to(dtype);
  train::LossSettings loss;
  loss.decay_gamma = 7;
  loss.kl_weight = loss.cap_weight = 0;

  pipeline::TrainBatch batch;
  const auto anchors = file.tensor("anchors");
  batch.blocks = data::make_draft_blocks(
      {file.tensor("input_ids"), file.tensor("loss_mask"), {}},
      {anchors, torch::ones(anchors.sizes(), torch::kBool)},
      drafter.block_rule(loss.block_decay()));
  batch.features = file.tensor("target_hidden").to(dtype);
  batch.embedded = at::embedding(embedding, batch.blocks.block_ids.flatten(1)).to(dtype);
  const int64_t S = batch.features.size(1);
  batch.tokens.lengths = {S};

  train::MicroStep step;
  std::vector<Contender> all = {
      {"step", [&] { step = {}, step = train::run_micro_step(drafter, lm_head, batch, loss); }}};
  measure(all, 1);
  all[0].seconds.clear();
  step = {};
  measure(all, runs);

  memory::StepShape shape;
  shape.drafter = drafter.config();
  shape.context_tokens = S;
  shape.blocks = anchors.numel();
  shape.has_teacher = false;
  const auto& d = drafter.config();
  const double attention =
      3.5 * 4 * count_visible(batch.blocks) *
      static_cast<double>(d.block_size * d.num_heads * d.head_dim * d.num_layers);
  const double flops = memory::count_step_flops(shape) + attention;
  const int64_t head_rows = shape.blocks * (d.block_size - 1);
  const double head_flops = 4 * static_cast<double>(head_rows * d.vocab_size * d.hidden_size);
  const double floor = (flops - head_flops) / measure_gemm_rate() +
                       measure_head(lm_head.to(torch::kBFloat16), head_rows);
  fmt::print(
      "{{\"tokens\": {}, \"loss\": {:.6f}, \"seconds\": {:.3f}, \"floor_seconds\": {:.3f}, "
      "\"ratio_to_floor\": {:.3f}, \"extra_bytes\": {}, \"gflops\": {:.0f}, "
      "\"forward\": {:.3f}, \"head\": {:.3f}, \"backward\": {:.3f}}}\n",
      S, step.sums.loss(), all[0].time(), floor, all[0].time() / floor, all[0].extra_bytes,
      flops / floor / 1e9, step.sums.times.forward, step.sums.times.head, step.sums.times.backward);
  if (output.empty()) return;
  formats::NamedTensors gradients = {{"loss", torch::full({1}, step.sums.loss(), torch::kFloat)}};
  for (size_t i = 0; i < step.gradients.size(); ++i)
    gradients.emplace_back(
        "grad." + drafter.parameters()[i].first,
        step.gradients[i].to(torch::kFloat) / step.sums.weight_sum);
  formats::write_safetensors(output, gradients);
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("bench_step MODEL_DIR BATCH_FILE [OUTPUT [float32|bfloat16 [RUNS]]]\n", stderr);
    return 2;
  }
  draftsmith::memory::install_host_allocator();
  const bool is_float = argc > 4 && std::string(argv[4]) == "float32";
  draftsmith::bench::run(
      argv[1], argv[2], argc > 3 ? argv[3] : "", is_float ? torch::kFloat : torch::kBFloat16,
      argc > 5 ? std::stoi(argv[5]) : 5);
}
