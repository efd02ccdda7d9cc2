// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/util/type_fwd.h>

#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

/// One column of a record batch, its values as JSON: {"input_ids", arrow::list(arrow::int32()),
/// "[[1, 2], [3]]"}.
struct Column {
  std::string name;
  std::shared_ptr<arrow::DataType> type;
  std::string values;
};

enum class ShardFormat { kStream, kFile };

std::shared_ptr<arrow::RecordBatch> make_record_batch(const std::vector<Column>& columns);

/// input_ids as list<int32> and loss_mask as list<int8>, the usual two columns.
std::shared_ptr<arrow::RecordBatch> make_token_batch(
    const std::string& ids,
    const std::string& mask);

void write_shard(
    const std::filesystem::path& path,
    const arrow::RecordBatchVector& batches,
    ShardFormat format = ShardFormat::kStream,
    arrow::Compression::type compression = arrow::Compression::UNCOMPRESSED);

/// state.json of a folder with these shards.
void write_state(const std::filesystem::path& folder, const std::vector<std::string>& shards);

/// A dataset folder of one shard.
std::filesystem::path write_shard_folder(
    const TempFolder& folder,
    const std::string& name,
    const arrow::RecordBatchVector& batches,
    ShardFormat format = ShardFormat::kStream);

}  // namespace draftsmith::testing
