// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/model/target.h"

#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

/// A copy of a checkpoint of tests/fixtures that a test changes before it is written.
struct TinyCheckpoint {
  std::map<std::string, torch::Tensor> tensors;
  formats::Json config;
  TempFolder folder;

  explicit TinyCheckpoint(const std::string& name) {
    const auto reader = golden(name + "/model.safetensors");
    for (const std::string& tensor : reader.names())
      tensors[tensor] = reader.tensor(tensor).clone();
    config = formats::read_json_file(fixture(name + "/config.json"));
  }

  std::filesystem::path write() const {
    formats::write_safetensors(folder / "model.safetensors", {tensors.begin(), tensors.end()});
    write_file_atomically(folder / "config.json", config.dump());
    return folder.path();
  }

  model::Target load(const std::string& dtype = "float32") const {
    model::TargetSettings settings;
    settings.path = write().string();
    settings.dtype = dtype;
    return model::Target::load(settings);
  }
};

}  // namespace draftsmith::testing
