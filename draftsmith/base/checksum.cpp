// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/checksum.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "draftsmith/base/error.h"

namespace draftsmith {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, lowest bit first
constexpr size_t kPiece = size_t{4} << 20;    // bytes read at once
constexpr size_t kLanes = 8;                  // bytes folded at once

using Tables = std::array<std::array<uint32_t, 256>, kLanes>;

/// tables[k][b]: what byte b does to the checksum when k bytes follow it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit)
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kLanes; ++k)
    for (size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t crc) {
  crc = ~crc;
  while (bytes.size() >= kLanes) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), kLanes);  // little-endian, as all our targets
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < kLanes; ++k)
      crc ^= kTables[kLanes - 1 - k][(word >> (8 * k)) & 0xff];
    bytes.remove_prefix(kLanes);
  }
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t crc32c_of_file(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::vector<char> piece(kPiece);
  uint32_t crc = 0;
  while (stream.read(piece.data(), static_cast<std::streamsize>(piece.size())) ||
         stream.gcount() > 0)
    crc = crc32c({piece.data(), static_cast<size_t>(stream.gcount())}, crc);
  if (stream.eof()) return crc;
  throw DataError(
      {.what = "file",
       .expected = "a readable file",
       .got = std::strerror(errno),
       .where = path.string()});
}

}  // namespace draftsmith
