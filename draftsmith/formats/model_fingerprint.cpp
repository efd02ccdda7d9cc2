// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/model_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/checksum.h"
#include "draftsmith/formats/mapped_file.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

constexpr size_t kSamples = 64;
constexpr size_t kSampleBytes = 4096;

uint32_t sample_file(std::string_view bytes, uint32_t crc) {
  const size_t last = bytes.size() - std::min(bytes.size(), kSampleBytes);
  for (size_t i = 0; i < kSamples; ++i)
    crc = crc32c(bytes.substr(last * i / (kSamples - 1), kSampleBytes), crc);
  return crc;
}

}  // namespace

std::string fingerprint_model(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  uint32_t crc = crc32c(read_file(folder / "config.json"));
  uintmax_t total = 0;
  for (const fs::path& path : files) {
    const auto file = MappedFile::open(path);
    crc = crc32c(path.filename().string(), crc);
    crc = sample_file({reinterpret_cast<const char*>(file->data()), file->size_bytes()}, crc);
    total += file->size_bytes();
  }
  return fmt::format("{} bytes of weights, {:08x}", total, crc);
}

}  // namespace draftsmith::formats
