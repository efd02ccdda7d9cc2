// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace draftsmith::formats {

using Scalars = std::vector<std::pair<std::string, float>>;  // tag, value

/// A run's scalars in TensorBoard's format: `events.out.tfevents.*`, records of masked CRC-32C
/// framing around protobuf messages `Event`. Every process of a run writes a file of its own,
/// whose name sorts behind those before it.
class EventFile {
 public:
  /// Cuts what earlier files of the folder tell of steps after `step`, and records that a killed
  /// process left unfinished; so all files together tell every step once, in order.
  /// Errors: DeviceError.
  EventFile(const std::filesystem::path& folder, int64_t step);

  /// Appends one event. Errors: DeviceError.
  void write(int64_t step, const Scalars& scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Bytes of the longest beginning of an event file that holds whole records of steps up to `step`.
size_t find_event_end(std::string_view bytes, int64_t step);

}  // namespace draftsmith::formats
