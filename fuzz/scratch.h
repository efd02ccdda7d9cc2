// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "draftsmith/base/error.h"

namespace draftsmith::fuzz {

/// A folder of this process; in memory where the system has such a place.
inline const std::filesystem::path& scratch() {
  static const std::filesystem::path folder = [] {
    const std::filesystem::path memory = "/dev/shm";
    auto path =
        (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
        ("draftsmith-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  return folder;
}

/// A folder below `scratch` with nothing in it.
inline std::filesystem::path empty_folder(const std::string& name) {
  const auto folder = scratch() / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A safetensors file with this header and some data behind it.
inline std::string with_length(std::string_view header, size_t payload) {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes += header;
  return bytes.append(payload, '\x5a');
}

/// The first byte chooses one of `count` ways to use the rest.
struct Input {
  Input(const uint8_t* data, size_t size, int count)
      : way(size == 0 ? 0 : data[0] % count),
        rest(size == 0 ? "" : reinterpret_cast<const char*>(data) + 1, size == 0 ? 0 : size - 1) {}

  int way;
  std::string_view rest;
};

/// Runs a reader that may refuse what it reads.
template <class Function>
void may_refuse(Function&& function) {
  try {
    function();
  } catch (const Error&) {
  }
}

/// Runs a reader of what this program has written, which must not be refused.
template <class Function>
void must_not_refuse(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    throw std::logic_error(error.what());
  }
}

}  // namespace draftsmith::fuzz
