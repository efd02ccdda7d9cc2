// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/safetensors.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

/// Touches every byte that a tensor claims to have.
void read_all(const formats::SafetensorsReader& reader, size_t file_bytes) {
  uint64_t sum = 0;
  for (const auto& name : reader.names()) {
    const auto tensor = reader.tensor(name);
    DS_CHECK(tensor.nbytes() <= file_bytes);
    const auto* bytes = static_cast<const uint8_t*>(tensor.data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i)
      sum += bytes[i];
  }
  volatile uint64_t keep = sum;
  (void)keep;
}

}  // namespace

void read_safetensors(const uint8_t* data, size_t size) {
  const Input input(data, size, 3);
  const auto folder = empty_folder("safetensors");
  const auto file = folder / "model.safetensors";
  may_refuse([&] {
    if (input.way == 2) {
      const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
      write(folder / "one.safetensors", with_length(header, 8));
      write(scratch() / "outside.safetensors", with_length(header, 8));
      write(folder / kIndex, input.rest);
      const auto reader = formats::SafetensorsReader::open_folder(folder);
      // A shard of the folder has this one tensor; nothing else can have been read.
      for (const auto& name : reader.names())
        DS_CHECK(name == "a");
      return read_all(reader, 8);
    }
    const std::string bytes =
        input.way == 0 ? std::string(input.rest) : with_length(input.rest, 64);
    write(file, bytes);
    read_all(formats::SafetensorsReader::open_file(file), bytes.size());
  });
}

}  // namespace draftsmith::fuzz
