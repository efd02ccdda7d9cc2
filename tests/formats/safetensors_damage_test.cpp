// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>

#include <torch/types.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/error.h"
#include "draftsmith/formats/safetensors.h"

#include "tests/base/expect_error.h"
#include "tests/support/temp_folder.h"

namespace draftsmith::formats {
namespace {

using testing::expect_error;
using testing::TempFolder;

std::string make_file(const std::string& header, size_t data_bytes, uint64_t header_length) {
  std::string bytes(sizeof(header_length), '\0');
  std::memcpy(bytes.data(), &header_length, sizeof(header_length));
  return bytes + header + std::string(data_bytes, 'd');
}

struct Lie {
  const char* name;
  const char* header;
  size_t data_bytes;
  const char* word;  // of the message, beside the file's name
};

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.header; }

std::string lie_name(const ::testing::TestParamInfo<Lie>& info) { return info.param.name; }

class SafetensorsHeader : public ::testing::TestWithParam<Lie> {};

TEST_P(SafetensorsHeader, IsRefusedWithFileAndTensorWhenItLies) {
  const TempFolder folder;
  const std::string header = GetParam().header;
  folder.write("w.safetensors", make_file(header, GetParam().data_bytes, header.size()));
  expect_error<DataError>(
      [&] { SafetensorsReader::open_file(folder / "w.safetensors"); },
      {"w.safetensors", GetParam().word});
}

#define ENTRY(dtype, shape, offsets) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{\"w.x\":" ENTRY(dtype, shape, offsets) "}"
#define TWO(first, second) "{\"w.x\":" first ",\"w.y\":" second "}"

INSTANTIATE_TEST_SUITE_P(
    Lies,
    SafetensorsHeader,
    ::testing::Values(
        Lie{"UnknownDtype", ONE("F12", "[2]", "[0,8]"), 8, "w.x"},
        Lie{"DtypeInSmallLetters", ONE("f32", "[2]", "[0,8]"), 8, "w.x"},
        Lie{"DtypeIsNoText", R"({"w.x":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})", 8, "w.x"},
        Lie{"NoDtype", R"({"w.x":{"shape":[2],"data_offsets":[0,8]}})", 8, "w.x"},
        Lie{"NoShape", R"({"w.x":{"dtype":"F32","data_offsets":[0,8]}})", 8, "w.x"},
        Lie{"NoOffsets", R"({"w.x":{"dtype":"F32","shape":[2]}})", 8, "w.x"},
        Lie{"EntryIsNoObject", R"({"w.x":[0,8]})", 8, "w.x"},
        Lie{"ShapeIsANumber", ONE("F32", "2", "[0,8]"), 8, "w.x"},
        Lie{"ShapeHasAText", ONE("F32", "[\"2\"]", "[0,8]"), 8, "w.x"},
        Lie{"ShapeHasAFraction", ONE("F32", "[2.0]", "[0,8]"), 8, "w.x"},
        Lie{"NegativeSize", ONE("F32", "[-2]", "[0,8]"), 8, "w.x"},
        Lie{"NegativeSizesWithAFittingProduct", ONE("F32", "[-2,-1]", "[0,8]"), 8, "w.x"},
        Lie{"SizeBeyond63Bits", ONE("U8", "[18446744073709551615]", "[0,8]"), 8, "w.x"},
        Lie{"ProductOverflowsToZero", ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, "w.x"},
        Lie{"ProductOverflowsToTheRightSize", ONE("U8", "[6148914691236517206,3]", "[0,2]"), 2,
            "w.x"},
        Lie{"ElementSizeOverflows", ONE("F64", "[2305843009213693952]", "[0,0]"), 0, "w.x"},
        Lie{"StridesOverflowBesideAZero",
            ONE("U8", "[0,4611686018427387904,4611686018427387904]", "[0,0]"), 0, "w.x"},
        Lie{"ShapeTooSmall", ONE("F32", "[1]", "[0,8]"), 8, "w.x"},
        Lie{"ShapeTooLarge", ONE("F32", "[3]", "[0,8]"), 8, "w.x"},
        Lie{"DtypeTooWide", ONE("F64", "[2]", "[0,8]"), 8, "w.x"},
        Lie{"OffsetsPastTheFile", ONE("F32", "[4]", "[0,16]"), 8, "w.x"},
        Lie{"OffsetsFarPastTheFile", ONE("U8", "[8]", "[9223372036854775799,9223372036854775807]"),
            8, "w.x"},
        Lie{"OffsetsReversed", ONE("F32", "[2]", "[8,0]"), 8, "w.x"},
        Lie{"NegativeOffset", ONE("F32", "[2]", "[-8,0]"), 8, "w.x"},
        Lie{"OffsetBeyond63Bits", ONE("U8", "[0]", "[0,18446744073709551615]"), 8, "w.x"},
        Lie{"OneOffset", ONE("F32", "[2]", "[8]"), 8, "w.x"},
        Lie{"ThreeOffsets", ONE("F32", "[2]", "[0,8,8]"), 8, "w.x"},
        Lie{"OffsetIsANumber", ONE("F32", "[2]", "8"), 8, "w.x"},
        Lie{"GapAtTheFront", ONE("F32", "[2]", "[4,12]"), 12, "w.x"},
        Lie{"GapBetween", TWO(ENTRY("F32", "[1]", "[0,4]"), ENTRY("F32", "[1]", "[8,12]")), 12,
            "w.y"},
        Lie{"Overlap", TWO(ENTRY("F32", "[2]", "[0,8]"), ENTRY("F32", "[2]", "[4,12]")), 12, "w.y"},
        Lie{"SameBytesTwice", TWO(ENTRY("F32", "[1]", "[0,4]"), ENTRY("I32", "[1]", "[0,4]")), 4,
            "w."},
        Lie{"EmptyTensorInsideAnother",
            TWO(ENTRY("F32", "[2]", "[0,8]"), ENTRY("F32", "[0]", "[4,4]")), 8, "w.y"},
        Lie{"DataNobodyOwns", ONE("F32", "[1]", "[0,4]"), 8, "file size"},
        Lie{"NameTwice",
            "{\"w.x\":" ENTRY("F32", "[1]", "[0,4]") ",\"w.x\":" ENTRY("I32", "[1]", "[0,4]") "}",
            4, "w.x"},
        Lie{"HeaderIsNoObject", "[]", 0, "object"},
        Lie{"HeaderIsNoJson", "{\"w.x\":", 0, "JSON"},
        Lie{"HeaderIsEmpty", "", 0, "JSON"},
        Lie{"HeaderIsNoUtf8", "{\"w\xff\":1}", 0, "JSON"}),
    lie_name);

TEST(SafetensorsFile, IsRefusedWhenTheHeaderLengthIsNotThatOfTheFile) {
  const TempFolder folder;
  const std::string header = ONE("F32", "[2]", "[0,8]");
  const uint64_t size = header.size();
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, size - 1, size + 1, size + 8, size + 9, uint64_t{100'000'001},
        uint64_t{1} << 32, uint64_t{1} << 63, UINT64_MAX - 7, UINT64_MAX}) {
    SCOPED_TRACE(length);
    folder.write("w.safetensors", make_file(header, 8, length));
    expect_error<DataError>(
        [&] { SafetensorsReader::open_file(folder / "w.safetensors"); }, {"w.safetensors"});
  }
}

TEST(SafetensorsFile, IsRefusedWhereverItIsCutShort) {
  const TempFolder folder;
  write_safetensors(
      folder / "whole", {{"a", torch::ones({5})}, {"b", torch::ones({3}, torch::kByte)}});
  const std::string bytes = read_file(folder / "whole");
  for (size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    folder.write("w.safetensors", bytes.substr(0, size));
    expect_error<DataError>(
        [&] { SafetensorsReader::open_file(folder / "w.safetensors"); }, {"w.safetensors"});
  }
  folder.write("w.safetensors", bytes);
  EXPECT_NO_THROW(SafetensorsReader::open_file(folder / "w.safetensors"));
}

TEST(SafetensorsFile, IsReadOrRefusedButNeverCrashesWithAnyDamagedHeaderByte) {
  const TempFolder folder;
  write_safetensors(
      folder / "whole", {{"a", torch::ones({5})}, {"b", torch::ones({0, 3}, torch::kByte)}});
  const std::string whole = read_file(folder / "whole");
  const size_t header_end = whole.size() - 20;
  int refused = 0;
  for (size_t i = 0; i < header_end; ++i) {
    for (const int flip : {0x01, 0x04, 0x10, 0x80}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      folder.write("w.safetensors", bytes);
      try {
        const auto reader = SafetensorsReader::open_file(folder / "w.safetensors");
        for (const auto& name : reader.names())
          reader.tensor(name).clone();
      } catch (const DataError&) {
        ++refused;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "byte " << i << " xor " << flip << ": " << error.what();
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end));  // all of length and most of the JSON matter
}

TEST(SafetensorsFile, IsRefusedWhenItsHeaderNestsDeeply) {
  const TempFolder folder;
  const std::string header = "{\"w\":" + std::string(1'000'000, '[');
  folder.write("w.safetensors", make_file(header, 0, header.size()));
  expect_error<DataError>(
      [&] { SafetensorsReader::open_file(folder / "w.safetensors"); }, {"w.safetensors"});
}

TEST(SafetensorsFile, MayHoldMetadataAndSpacesAfterTheHeader) {
  const TempFolder folder;
  const std::string header =
      R"({"__metadata__":{"format":"pt","n":"1"},"w":)" ENTRY("F32", "[2]", "[0,8]") "}   ";
  folder.write("w.safetensors", make_file(header, 8, header.size()));
  const auto reader = SafetensorsReader::open_file(folder / "w.safetensors");
  EXPECT_EQ(reader.names(), std::vector<std::string>{"w"});
}

}  // namespace
}  // namespace draftsmith::formats
