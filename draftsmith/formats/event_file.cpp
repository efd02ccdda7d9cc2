// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/checksum.h"

namespace draftsmith::formats {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr size_t kHeaderBytes = 12;  // length and its checksum
constexpr size_t kFooterBytes = 4;   // checksum of the message

// Fields of tensorflow.Event, Summary and Summary.Value, and protobuf's wire types.
enum Field : uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimple = 2;
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class Number>
std::string raw(Number number) {
  std::string bytes(sizeof(Number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(Number));
  return bytes;
}

template <class Number>
Number unraw(std::string_view bytes) {
  Number number{};
  std::memcpy(&number, bytes.data(), sizeof(Number));
  return number;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7)
    bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(uint32_t field, Wire wire) { return varint(field << 3 | wire); }

std::string text(uint32_t field, const std::string& bytes) {
  return key(field, kBytes) + varint(bytes.size()) + bytes;
}

/// The framing's checksum: rotated and shifted, so that a checksum of data that holds checksums
/// is still a good one.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string frame(const std::string& message) {
  const std::string length = raw(static_cast<uint64_t>(message.size()));
  return length + raw(masked_crc(length)) + message + raw(masked_crc(message));
}

std::string begin_event() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return key(kWallTime, kFixed64) + raw(std::chrono::duration<double>(now).count());
}

/// The step of a message as `write` makes it: wall time (9 bytes), then the step; else 0.
int64_t step_of(std::string_view message) {
  constexpr size_t kTimeBytes = 9;
  if (message.size() < kTimeBytes + 2 || message.substr(kTimeBytes, 1) != key(kStep, kVarint))
    return 0;
  uint64_t step = 0;
  int shift = 0;
  for (const char c : message.substr(kTimeBytes + 1)) {
    step |= static_cast<uint64_t>(c & 0x7f) << shift;
    shift += 7;
    if ((c & 0x80) == 0 || shift > 56) break;
  }
  return static_cast<int64_t>(step);
}

void append(const fs::path& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary | std::ios::app);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream.close();
  if (!stream) fail_write(path, std::strerror(errno));
}

std::vector<fs::path> list_event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().rfind(kPrefix, 0) == 0) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// Seconds since 1970, but later than those in the name of an earlier file.
int64_t choose_seconds(const std::vector<fs::path>& earlier) {
  int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  if (earlier.empty()) return seconds;
  const std::string name = earlier.back().filename().string().substr(kPrefix.size());
  int64_t last = 0;
  std::from_chars(name.data(), name.data() + name.size(), last);
  return std::max(seconds, last + 1);
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof(name) - 1);
  return *name == '\0' ? "host" : name;
}

}  // namespace

size_t find_event_end(std::string_view bytes, int64_t step) {
  size_t end = 0;
  while (bytes.size() - end >= kHeaderBytes + kFooterBytes) {
    const auto record = bytes.substr(end);
    const auto length = unraw<uint64_t>(record);
    if (unraw<uint32_t>(record.substr(8)) != masked_crc(record.substr(0, 8))) break;
    if (length > record.size() - kHeaderBytes - kFooterBytes) break;
    const auto message = record.substr(kHeaderBytes, length);
    if (unraw<uint32_t>(record.substr(kHeaderBytes + length)) != masked_crc(message)) break;
    if (step_of(message) > step) break;
    end += kHeaderBytes + length + kFooterBytes;
  }
  return end;
}

EventFile::EventFile(const fs::path& folder, int64_t step) {
  const auto earlier = list_event_files(folder);
  for (const fs::path& path : earlier) {
    const std::string bytes = read_file(path);
    const size_t end = find_event_end(bytes, step);
    std::error_code error;
    if (end < bytes.size()) fs::resize_file(path, end, error);
    if (error) fail_write(path, error.message());
  }
  path_ = folder /
          fmt::format("{}{:010}.{}.{}", kPrefix, choose_seconds(earlier), host_name(), ::getpid());
  append(path_, frame(begin_event() + text(kFileVersion, "brain.Event:2")));
}

void EventFile::write(int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += text(kSummaryValue, text(kValueTag, tag) + key(kValueSimple, kFixed32) + raw(value));
  append(
      path_, frame(
                 begin_event() + key(kStep, kVarint) + varint(static_cast<uint64_t>(step)) +
                 text(kSummary, summary)));
}

}  // namespace draftsmith::formats
