// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"

#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

/// A target and a drafter of 23 tokens without attention or MLP, so that what they say is known:
/// after token x the target says next(x), and every draft is next(22), the mask token's.
struct MarkovModels {
  TempFolder folder;
  model::Target target;
  model::Drafter drafter;

  explicit MarkovModels(const std::function<int64_t(int64_t)>& next)
      : target(make_target(folder, next)), drafter(make_drafter(folder)) {}

 private:
  static bool is_muted(const std::string& name) {
    return name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
  }

  static void rewrite(
      const std::string& from,
      const std::filesystem::path& to,
      const std::function<torch::Tensor(const std::string&, torch::Tensor)>& change) {
    const auto reader = golden(from + "/model.safetensors");
    formats::NamedTensors tensors;
    for (const std::string& name : reader.names())
      tensors.emplace_back(
          name, is_muted(name) ? torch::zeros_like(reader.tensor(name))
                               : change(name, reader.tensor(name)));
    std::filesystem::create_directories(to);
    formats::write_safetensors(to / "model.safetensors", tensors);
    std::filesystem::copy(fixture(from + "/config.json"), to / "config.json");
  }

  static model::Target make_target(
      const TempFolder& folder,
      const std::function<int64_t(int64_t)>& next) {
    rewrite("decode/target", folder / "target", [&](const std::string& name, torch::Tensor tensor) {
      if (name == "model.norm.weight") return torch::ones_like(tensor);
      if (name == "model.embed_tokens.weight") return torch::eye(23, 64);
      if (name != "lm_head.weight") return tensor;
      auto head = torch::zeros({23, 64});
      for (int64_t x = 0; x < 23; ++x)
        head[next(x)][x] = 1;
      return head;
    });
    model::TargetSettings settings;
    settings.path = (folder / "target").string();
    settings.dtype = "float32";
    return model::Target::load(settings);
  }

  static model::Drafter make_drafter(const TempFolder& folder) {
    rewrite(
        "decode/drafter", folder / "drafter", [](const std::string& name, torch::Tensor tensor) {
          return name == "norm.weight" ? torch::ones_like(tensor) : tensor;
        });
    return model::Drafter::load(folder / "drafter", torch::kFloat);
  }
};

}  // namespace draftsmith::testing
