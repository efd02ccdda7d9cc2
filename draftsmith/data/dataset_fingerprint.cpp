// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/checksum.h"

namespace draftsmith::data {
namespace {

constexpr int64_t kSamples = 64;

template <class Value>
std::string_view as_bytes(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

}  // namespace

std::string fingerprint_dataset(const TokenDataset& dataset) {
  const int64_t count = dataset.num_sequences();
  const int64_t samples = std::min(count, kSamples);
  uint32_t crc = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const auto sequence = dataset.sequence(samples == 1 ? 0 : i * (count - 1) / (samples - 1));
    crc = crc32c(as_bytes(sequence.mask), crc32c(as_bytes(sequence.ids), crc));
  }
  return fmt::format("{} sequences, {:08x}", count, crc);
}

}  // namespace draftsmith::data
