// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/stored_dtype.h"

#include "draftsmith/formats/json.h"

namespace draftsmith::formats {

std::string read_stored_dtype(const std::filesystem::path& folder) {
  const auto root = JsonObject::from_file(folder / "config.json");
  if (root.has("quantization_config")) return "quantized";
  const JsonObject inner = root.has("text_config") ? root.object("text_config") : root;
  for (const JsonObject* json : {&root, &inner})
    for (const char* key : {"dtype", "torch_dtype"})
      if (json->has(key)) return json->text(key);
  return "";
}

}  // namespace draftsmith::formats
