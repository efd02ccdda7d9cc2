// SPDX-License-Identifier: Apache-2.0
// A target's prefill against the time of its matrix products alone, its answers to many prompts at
// once, and what extract adds to the forward; bfloat16, or float32 where that is the last word.
// bench/target_transformers.py does the first two with transformers.
//
//   bench_target make DIR            writes the hybrid model of docs/performance.md, random weights
//   bench_target run DIR 1x2048 ...  prefill of rows x tokens
//   bench_target generate DIR        64 tokens for each of 48 prompts of 64
//   bench_target extract DIR [DATA]  1,000 sequences (of the dataset DATA, else random), in ten
//                                    parts: the bare forward and extract in turn
#include "draftsmith/model/target.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/random.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/eval/plain_decode.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/pipeline/extract.h"

#include "bench/measure.h"

namespace draftsmith::bench {
namespace {

void make_hybrid(const std::string& folder) {
  const formats::Json config = {
      {"architectures", {"Qwen3_5ForCausalLM"}},
      {"model_type", "qwen3_5_text"},
      {"dtype", "bfloat16"},
      {"vocab_size", 32000},
      {"hidden_size", 1024},
      {"intermediate_size", 3584},
      {"num_hidden_layers", 8},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 2},
      {"head_dim", 256},
      {"linear_num_key_heads", 16},
      {"linear_num_value_heads", 16},
      {"linear_key_head_dim", 128},
      {"linear_value_head_dim", 128},
      {"linear_conv_kernel_dim", 4},
      {"full_attention_interval", 4},
      {"hidden_act", "silu"},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", 32768},
      {"rope_parameters",
       {{"rope_type", "default"},
        {"rope_theta", 10000000.0},
        {"partial_rotary_factor", 0.25},
        {"mrope_interleaved", true},
        {"mrope_section", {11, 11, 10}}}},
      {"tie_word_embeddings", true}};
  make_writable_folder(folder, "bench");
  write_file_atomically(folder + "/config.json", config.dump(2));
  formats::NamedTensors tensors;
  uint64_t seed = 0;
  for (const auto& spec : model::list_target_weights(formats::read_target_config(folder))) {
    // Norms multiply by 1 + weight, except the one within the linear layers.
    const bool is_plain_norm = spec.name.find("linear_attn.norm") != std::string::npos;
    const double scale = spec.kind == model::WeightKind::kMatrix ? 0.02 : 0.1;
    auto tensor = random_bfloat16(spec.shape, scale, ++seed);
    if (is_plain_norm) tensor += 1;
    tensors.emplace_back(spec.name, tensor);
  }
  formats::write_safetensors(folder + "/model.safetensors", tensors);
}

/// The matrix products of all layers for as many rows, nothing else.
std::function<void()> matrix_products(const model::Target& target, int64_t rows) {
  std::vector<torch::Tensor> weights;
  for (const auto& layer : target.layers()) {
    const auto add = [&](const model::Linear& linear) { weights.push_back(linear.weight); };
    if (layer.delta) {
      for (const auto* linear :
           {&layer.delta->in_proj_qkv, &layer.delta->in_proj_z, &layer.delta->in_proj_b,
            &layer.delta->in_proj_a, &layer.delta->out_proj})
        add(*linear);
    } else {
      for (const auto* linear : {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj})
        add(*linear);
    }
    for (const auto* linear : {&layer.gate_proj, &layer.up_proj, &layer.down_proj})
      add(*linear);
  }
  std::map<int64_t, torch::Tensor> inputs;
  for (const auto& weight : weights)
    inputs[weight.size(1)] = random_bfloat16({rows, weight.size(1)}, 1, 1).to(target.dtype());
  return [weights, inputs] {
    const at::NoGradGuard no_grad;
    for (const auto& weight : weights)
      at::linear(inputs.at(weight.size(1)), weight);
  };
}

std::string dtype = "bfloat16";

model::Target load(const std::string& folder) {
  model::TargetSettings settings;
  settings.path = folder;
  settings.dtype = dtype;
  return model::Target::load(settings);
}

/// Ids of ordinary tokens, different for every `seed`.
std::vector<int64_t> make_ids(int64_t count, uint64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(5 + static_cast<int64_t>(hash_key({seed, static_cast<uint64_t>(i)}) % 1000));
  return ids;
}

void run_generate(const std::string& folder) {
  constexpr int64_t kPrompts = 48, kPromptTokens = 64, kNewTokens = 64;
  const auto target = load(folder);
  std::vector<std::vector<int64_t>> prompts;
  for (uint64_t i = 0; i < kPrompts; ++i)
    prompts.push_back(make_ids(kPromptTokens, i));
  std::vector<Contender> answers = {{"", [&] {
                                       eval::decode_plainly(target, prompts, {kNewTokens, {}});
                                     }}};
  measure(answers, 3);
  print_header({"prompts x tokens", "new tokens each", "s", "new tokens/s"});
  print_row(
      {fmt::format("{} x {}", kPrompts, kPromptTokens), fmt::format("{}", kNewTokens),
       fmt::format("{:.2f}", answers[0].time()),
       fmt::format("{:.0f}", static_cast<double>(kPrompts * kNewTokens) / answers[0].time())});
}

/// Sequences as long as the demo's, or those of a dataset, again and again.
std::vector<data::TokenSequence> make_sequences(int64_t count, const std::string& dataset) {
  std::vector<data::TokenSequence> sequences;
  if (!dataset.empty()) {
    const auto stored = data::TokenDataset::open(dataset, "");
    for (int64_t i = 0; i < count; ++i)
      sequences.push_back(stored.sequence(i % stored.num_sequences()));
    return sequences;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    const int64_t length = 100 + static_cast<int64_t>(hash_key({seed, 999}) % 200);
    sequences.push_back({make_ids(length, seed), std::vector<uint8_t>(length, 1)});
  }
  return sequences;
}

void run_extract(const std::string& folder, const std::string& dataset) {
  namespace fs = std::filesystem;
  constexpr int64_t kParts = 10, kSequences = 100;
  const auto target = load(folder);
  const auto layers = formats::choose_target_layer_ids(target.config().num_layers, 5);
  const data::FeatureHeader header{"bf16", layers, target.config().hidden_size, "bench", 0};
  const auto sequences = make_sequences(kParts * kSequences, dataset);
  const fs::path scratch = fs::temp_directory_path() / fmt::format("bench-extract-{}", ::getpid());
  double bare = 0, extract = 0;
  int64_t tokens = 0;
  for (int64_t part = 0; part < kParts; ++part) {
    const auto out = scratch / fmt::format("{}", part);
    const auto first = sequences.begin() + part * kSequences;
    fs::create_directories(scratch);
    data::write_dataset(out, {first, first + kSequences});
    data::BatchSource source(data::TokenDataset::open(out, ""), {}, target.config().vocab_size);
    const auto run_bare = [&] {
      const Stopwatch watch;
      for (int64_t batch = 0; batch < source.batches_of_epoch(0); ++batch) {
        const auto read = source.read({0, batch}, {2, 0, 0}).tokens;
        target.forward(read.ids, layers, read.document_ids);
      }
      return watch.seconds();
    };
    const auto run_extract = [&] {
      data::write_feature_header(out, header);
      const data::FeatureStore done(out, /*is_partial=*/true);
      const Stopwatch watch;
      data::FeatureWriter writer(out, header, 0);
      pipeline::extract_features(
          target, source, layers, done, writer,
          [&](const auto& written, const auto&) { tokens += written.tokens; });
      writer.finish();
      return watch.seconds();
    };
    if (part == 0) run_bare();  // the first run reads weights and packs them
    // Whoever comes second finds the caches warmer, so they take turns at that too.
    if (part % 2 == 0) {
      bare += run_bare();
      extract += run_extract();
    } else {
      extract += run_extract();
      bare += run_bare();
    }
    fs::remove_all(out);
  }
  fs::remove_all(scratch);
  print_header({"sequences", "tokens", "bytes a token", "forward, s", "extract, s", "ratio"});
  print_row(
      {fmt::format("{}", kParts * kSequences), fmt::format("{}", tokens),
       fmt::format("{}", header.bytes_per_token()), fmt::format("{:.1f}", bare),
       fmt::format("{:.1f}", extract), fmt::format("{:.3f}", extract / bare)});
}

void run_shapes(const std::string& folder, const std::vector<std::string>& shapes) {
  const auto target = load(folder);
  print_header({"rows x tokens", "prefill", "matrix products", "ratio", "tokens/s"});
  for (const std::string& shape : shapes) {
    int64_t B = 0;
    int64_t S = 0;
    if (std::sscanf(shape.c_str(), "%ldx%ld", &B, &S) != 2) continue;
    const auto ids = torch::arange(B * S, torch::kLong).remainder(1000).view({B, S});
    std::vector<Contender> contenders = {
        {"prefill", [&] { target.forward(ids, {}); }},
        {"matrix products", matrix_products(target, B * S)}};
    measure(contenders, 1);  // the first run reads weights and packs them
    for (auto& contender : contenders)
      contender.seconds.clear();
    measure(contenders, 7);
    const double prefill = contenders[0].time();
    const double products = contenders[1].time();
    print_row(
        {shape, fmt::format("{:.1f} ms", 1e3 * prefill), fmt::format("{:.1f} ms", 1e3 * products),
         fmt::format("{:.2f}", prefill / products),
         fmt::format("{:.0f}", static_cast<double>(B * S) / prefill)});
  }
}

}  // namespace
}  // namespace draftsmith::bench

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.back() == "float32") {
    draftsmith::bench::dtype = words.back();
    words.pop_back();
  }
  draftsmith::memory::install_host_allocator();
  if (words.size() == 2 && words[0] == "make") {
    draftsmith::bench::make_hybrid(words[1]);
  } else if (words.size() >= 3 && words[0] == "run") {
    draftsmith::bench::run_shapes(words[1], {words.begin() + 2, words.end()});
  } else if (words.size() == 2 && words[0] == "generate") {
    draftsmith::bench::run_generate(words[1]);
  } else if ((words.size() == 2 || words.size() == 3) && words[0] == "extract") {
    draftsmith::bench::run_extract(words[1], words.size() == 3 ? words[2] : "");
  } else {
    std::fputs(
        "usage: bench_target make DIR | run DIR 1x2048 ... | generate DIR | extract DIR [DATA], "
        "each [float32]\n",
        stderr);
    return 2;
  }
}
