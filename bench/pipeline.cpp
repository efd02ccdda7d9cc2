// SPDX-License-Identifier: Apache-2.0
// The pipeline's own cost, as ratios:
//
//   bench_pipeline simulated   workers that sleep, the real threads and queues
//   bench_pipeline real        1 + 1 workers against the same run in one thread, in turn
#include "draftsmith/pipeline/pipeline.h"

#include <fmt/format.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/random.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/model/drafter_init.h"
#include "draftsmith/pipeline/workers.h"
#include "draftsmith/train/trainer.h"

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

namespace fs = std::filesystem;
using pipeline::Split;
using pipeline::StageSeconds;

/// Sleeps for `seconds`, up to `jitter` of it more or less, the same for a number in every run.
void sleep_about(double seconds, double jitter, int64_t number) {
  const auto key = hash_key({static_cast<uint64_t>(number)}) % 2001;
  const double factor = 1 + jitter * (static_cast<double>(key) / 1000 - 1);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds * factor));
}

struct Simulation {
  Split split;
  StageSeconds seconds;  // of a batch
  double jitter = 0;     // of the targets' times
  int64_t steps = 60;
};

struct Simulated {
  double seconds = 0;
  double ratio_to_ideal = 0;  // of the rates that the workers really had
  double idle_share = 0;      // of the drafters: without a batch, or waiting for one that has none
};

/// Drafters end each step together, as they do when they exchange gradients.
Simulated run_simulation(const Simulation& sim) {
  std::vector<pipeline::TargetWorker> targets;
  for (int64_t i = 0; i < sim.split.targets; ++i)
    targets.push_back({.run = [&sim](data::SourceBatch batch) {
      sleep_about(sim.seconds.target, sim.jitter, batch.at.batch);
      return pipeline::TrainBatch{};
    }});
  const int64_t R = sim.split.drafters;
  pipeline::Pipeline line(
      {.ranks = R, .share = {0, R, R}},
      [](int64_t number) {
        data::SourceBatch batch;
        batch.at.batch = number;
        return batch;
      },
      std::move(targets));
  constexpr int64_t kFillingSteps = 10;  // the queues fill
  Stopwatch watch;
  std::vector<double> worked(static_cast<size_t>(R), 0);
  std::barrier together(R);
  {
    std::vector<std::jthread> drafters;
    for (int64_t rank = 0; rank < R; ++rank) {
      drafters.emplace_back([&, rank] {
        const auto feed = line.feed(rank);
        const auto own = static_cast<size_t>(rank);
        for (int64_t step = 0; step < sim.steps + kFillingSteps; ++step) {
          if (step == kFillingSteps && rank == 0) watch.restart();
          feed->next();
          const Stopwatch work;
          sleep_about(sim.seconds.drafter, 0, 0);
          if (step >= kFillingSteps) worked[own] += work.seconds();
          together.arrive_and_wait();
        }
      });
    }
  }
  Simulated result;
  result.seconds = watch.seconds();
  double all_worked = 0;
  for (const double seconds : worked)
    all_worked += seconds;
  result.idle_share = 1 - all_worked / (static_cast<double>(R) * result.seconds);
  // Sleeps last a little longer than asked: the ideal is that of the times they took.
  const auto batches = static_cast<double>(sim.steps * R);
  const StageSeconds real{0, line.stage_seconds().target, all_worked / batches};
  result.ratio_to_ideal = batches / result.seconds / batches_per_s(real, sim.split);
  return result;
}

double measure_hand_over(int64_t batches) {
  pipeline::Pipeline line(
      {}, [](int64_t) { return data::SourceBatch{}; },
      {{.run = [](const data::SourceBatch&) { return pipeline::TrainBatch{}; }}});
  const auto feed = line.feed(0);
  std::vector<double> seconds;
  for (int64_t run = 0; run < 21; ++run) {
    const Stopwatch watch;
    for (int64_t i = 0; i < batches; ++i)
      feed->next();
    seconds.push_back(watch.seconds() / static_cast<double>(batches));
  }
  return median(seconds);
}

void run_simulated() {
  print_header({"simulated", "result", "must", "aim"});
  // 5 targets and 3 drafters; needed are 3 batches in 120 ms, targets 20 % faster make 3.6.
  Simulation faster{.split = {5, 3}, .seconds = {0, 0.120 * 5 / 3.6, 0.120}};
  print_row(
      {"drafters' idle share, targets 20 % faster",
       fmt::format("{:.2f} %", 100 * run_simulation(faster).idle_share), "<= 2 %", "0.5 %"});
  faster.jitter = 0.3;
  print_row(
      {"the same, each target's times +-30 %",
       fmt::format("{:.2f} %", 100 * run_simulation(faster).idle_share), "<= 2 %", "0.5 %"});
  Simulation balanced{.split = {5, 3}, .seconds = {0, 0.200, 0.120}};
  print_row(
      {"5 + 3 of equal rates against the ideal",
       fmt::format("{:.3f}", run_simulation(balanced).ratio_to_ideal), ">= 0.97", "0.99"});
  Simulation slow_targets{.split = {5, 3}, .seconds = {0, 0.240, 0.120}, .jitter = 0.1};
  print_row(
      {"5 + 3, targets slower, +-10 %",
       fmt::format("{:.3f}", run_simulation(slow_targets).ratio_to_ideal), ">= 0.97", "0.99"});
  print_row(
      {"queues and hand-over, a batch", fmt::format("{:.1f} us", 1e6 * measure_hand_over(1000)),
       "<= 50 us", ""});
}

/// A small Qwen3 of random weights whose forward takes about as long as the drafter's step.
void write_target(const fs::path& folder) {
  const formats::Json config = {
      {"architectures", {"Qwen3ForCausalLM"}},
      {"model_type", "qwen3"},
      {"dtype", "bfloat16"},
      {"vocab_size", 8192},
      {"hidden_size", 512},
      {"intermediate_size", 1536},
      {"num_hidden_layers", 8},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 2},
      {"head_dim", 64},
      {"hidden_act", "silu"},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"max_position_embeddings", 4096},
      {"tie_word_embeddings", true}};
  fs::create_directories(folder);
  write_file_atomically(folder / "config.json", config.dump(2));
  formats::NamedTensors tensors;
  uint64_t seed = 0;
  for (const auto& spec : model::list_target_weights(formats::read_target_config(folder))) {
    auto tensor = random_bfloat16(spec.shape, 0.02, ++seed);
    if (spec.kind != model::WeightKind::kMatrix) tensor += 1;
    tensors.emplace_back(spec.name, tensor);
  }
  formats::write_safetensors(folder / "model.safetensors", tensors);
}

void write_sequences(const fs::path& folder) {
  std::vector<data::TokenSequence> sequences;
  for (uint64_t i = 0; i < 256; ++i) {
    data::TokenSequence sequence;
    for (uint64_t t = 0; t < 256; ++t) {
      sequence.ids.push_back(static_cast<int64_t>(hash_key({i, t}) % 8000));
      sequence.mask.push_back(t >= 64);
    }
    sequences.push_back(std::move(sequence));
  }
  data::write_dataset(folder, sequences);
}

/// Seconds of the steps of a run.
double time_run(const model::Target& target, const fs::path& folder, bool is_fed) {
  data::DataSettings data_settings;
  data_settings.tokens_per_batch = 1024;
  data_settings.num_anchors = 48;
  data::BatchSource source(
      data::TokenDataset::open(folder / "data", ""), data_settings, target.config().vocab_size);
  model::DrafterSettings drafter_settings;
  drafter_settings.num_layers = 2;
  drafter_settings.mask_token_id = 8100;
  auto drafter = model::make_drafter(drafter_settings, {}, target, {}, 0);
  train::TrainSettings settings;
  settings.out = (folder / "run").string();
  fs::create_directories(settings.out);
  settings.max_steps = 40;
  auto loader_source = source.share();
  std::unique_ptr<pipeline::Pipeline> line;
  train::Trainer trainer(target, std::move(drafter), std::move(source), {}, settings, {});
  if (is_fed) {
    line = std::make_unique<pipeline::Pipeline>(
        pipeline::PipelineShape{},
        pipeline::make_loader(std::move(loader_source), trainer.recipe(), {}),
        std::vector{pipeline::make_target_worker(target, trainer.recipe())});
    trainer.use_feed(line->feed(0));
  }
  trainer.run();
  fs::remove_all(settings.out);
  return trainer.progress().seconds;
}

void run_real() {
  const fs::path folder = fs::temp_directory_path() / fmt::format("bench_pipeline-{}", ::getpid());
  write_target(folder / "target");
  write_sequences(folder / "data");
  {
    model::TargetSettings settings;
    settings.path = (folder / "target").string();
    const auto target = model::Target::load(settings);
    time_run(target, folder, false);
    std::vector<double> alone, fed;
    for (int i = 0; i < 5; ++i) {
      alone.push_back(time_run(target, folder, false));
      fed.push_back(time_run(target, folder, true));
    }
    fmt::print(
        "1 + 1 workers: {:.3f} s, in one thread {:.3f} s; throughput {:.3f} of it (must >= 0.97)\n",
        median(fed), median(alone), median(alone) / median(fed));
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  const std::string mode = argc == 2 ? argv[1] : "";
  if (mode != "simulated" && mode != "real") {
    std::fputs("bench_pipeline simulated | real\n", stderr);
    return 2;
  }
  draftsmith::memory::install_host_allocator();
  if (mode == "simulated") draftsmith::bench::run_simulated();
  if (mode == "real") draftsmith::bench::run_real();
}
