// SPDX-License-Identifier: Apache-2.0
// Prefill of a target against the time of its matrix products alone, measured in turn.
//
//   bench_target make DIR           writes the hybrid model of docs/performance.md, random weights
//   bench_target run DIR 1x2048 ... rows x tokens, bfloat16
#include "draftsmith/model/target.h"

#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"

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

void run_shapes(const std::string& folder, const std::vector<std::string>& shapes) {
  model::TargetSettings settings;
  settings.path = folder;
  const auto target = model::Target::load(settings);
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
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 2 && words[0] == "make") {
    draftsmith::bench::make_hybrid(words[1]);
  } else if (words.size() >= 3 && words[0] == "run") {
    draftsmith::bench::run_shapes(words[1], {words.begin() + 2, words.end()});
  } else {
    std::fputs("usage: bench_target make DIR | bench_target run DIR 1x2048 ...\n", stderr);
    return 2;
  }
}
