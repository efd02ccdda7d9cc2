// SPDX-License-Identifier: Apache-2.0
#include "tests/data/arrow_shards.h"

#include <fstream>

#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>
#include <arrow/json/from_string.h>
#include <arrow/util/compression.h>

#include "draftsmith/base/error.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::testing {
namespace {

void require(const arrow::Status& status) { DS_CHECK(status.ok()); }

}  // namespace

std::shared_ptr<arrow::RecordBatch> make_record_batch(const std::vector<Column>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const Column& column : columns) {
    fields.push_back(arrow::field(column.name, column.type));
    arrays.push_back(arrow::json::ArrayFromJSONString(column.type, column.values).ValueOrDie());
  }
  const int64_t num_rows = arrays.front()->length();
  return arrow::RecordBatch::Make(arrow::schema(fields), num_rows, arrays);
}

std::shared_ptr<arrow::RecordBatch> make_token_batch(
    const std::string& ids,
    const std::string& mask) {
  return make_record_batch(
      {{"input_ids", arrow::list(arrow::int32()), ids},
       {"loss_mask", arrow::list(arrow::int8()), mask}});
}

void write_shard(
    const std::filesystem::path& path,
    const arrow::RecordBatchVector& batches,
    ShardFormat format,
    arrow::Compression::type compression) {
  const auto file = arrow::io::FileOutputStream::Open(path.string()).ValueOrDie();
  const auto schema = batches.front()->schema();
  auto options = arrow::ipc::IpcWriteOptions::Defaults();
  if (compression != arrow::Compression::UNCOMPRESSED)
    options.codec = arrow::util::Codec::Create(compression).ValueOrDie();
  const auto writer = format == ShardFormat::kFile
                          ? arrow::ipc::MakeFileWriter(file, schema, options).ValueOrDie()
                          : arrow::ipc::MakeStreamWriter(file, schema, options).ValueOrDie();
  for (const auto& batch : batches)
    require(writer->WriteRecordBatch(*batch));
  require(writer->Close());
  require(file->Close());
}

void write_state(const std::filesystem::path& folder, const std::vector<std::string>& shards) {
  formats::Json files = formats::Json::array();
  for (const auto& shard : shards) {
    formats::Json file = formats::Json::object();
    file["filename"] = shard;
    files.push_back(file);
  }
  formats::Json state = formats::Json::object();
  state["_data_files"] = files;
  std::ofstream(folder / "state.json") << state.dump();
}

std::filesystem::path write_shard_folder(
    const TempFolder& folder,
    const std::string& name,
    const arrow::RecordBatchVector& batches,
    ShardFormat format) {
  std::filesystem::create_directories(folder / name);
  write_shard(folder / name / "data.arrow", batches, format);
  write_state(folder / name, {"data.arrow"});
  return folder / name;
}

}  // namespace draftsmith::testing
