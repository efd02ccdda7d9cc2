// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/fields.h"

#include <gtest/gtest.h>

#include "draftsmith/base/error.h"

#include "tests/base/expect_error.h"

namespace draftsmith {
namespace {

using testing::expect_error;

struct Sample {
  std::string name = "first";
  bool is_fast = false;
  int64_t steps = 5;
  double lr = 6e-4;
  std::vector<int64_t> ids = {0, 2};
  std::vector<double> betas = {0.9, 0.95};
  std::vector<std::string> layers = {"full", "sliding"};
  std::optional<bool> is_causal;
  std::string method = "chain";
};

FieldList make_fields(Sample& sample) {
  FieldList fields;
  fields.begin_section("train");
  fields.add("name", sample.name, "a name");
  fields.add("is_fast", sample.is_fast, "a switch");
  fields.add("steps", sample.steps, "a count", {2, 9});
  fields.add("lr", sample.lr, "a rate", kShare);
  fields.add("betas", sample.betas, "two shares", kShare);
  fields.begin_section("eval");
  fields.add("ids", sample.ids, "some ids");
  fields.add("layers", sample.layers, "some kinds");
  fields.add("is_causal", sample.is_causal, "three states");
  fields.add_choice("method", sample.method, {"chain", "tree"}, "how to draft");
  return fields;
}

TEST(FieldList, PrintsEachDefaultAsParseReadsIt) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  const std::vector<std::pair<std::string, std::string>> wanted = {
      {"train.name", "first"},         {"train.is_fast", "false"},  {"train.steps", "5"},
      {"train.lr", "0.0006"},          {"train.betas", "0.9,0.95"}, {"eval.ids", "0,2"},
      {"eval.layers", "full,sliding"}, {"eval.is_causal", ""},      {"eval.method", "chain"}};
  ASSERT_EQ(fields.fields().size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(fields.fields()[i].key, wanted[i].first);
    EXPECT_EQ(fields.fields()[i].print(), wanted[i].second) << wanted[i].first;
  }
}

TEST(FieldList, ParsesIntoTheStruct) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  fields.get("train.name", "").parse("second run");
  fields.get("train.is_fast", "").parse("true");
  fields.get("train.steps", "").parse(" 9 ");
  fields.get("train.lr", "").parse("1e-5");
  fields.get("train.betas", "").parse("0.5, 1");
  fields.get("eval.ids", "").parse("-1,7,40");
  fields.get("eval.layers", "").parse("full");
  fields.get("eval.is_causal", "").parse("false");
  fields.get("eval.method", "").parse("tree");
  EXPECT_EQ(sample.name, "second run");
  EXPECT_TRUE(sample.is_fast);
  EXPECT_EQ(sample.steps, 9);
  EXPECT_EQ(sample.lr, 1e-5);
  EXPECT_EQ(sample.betas, (std::vector<double>{0.5, 1}));
  EXPECT_EQ(sample.ids, (std::vector<int64_t>{-1, 7, 40}));
  EXPECT_EQ(sample.layers, (std::vector<std::string>{"full"}));
  EXPECT_EQ(sample.is_causal, false);
  EXPECT_EQ(sample.method, "tree");
}

TEST(FieldList, PrintsADoubleSoThatItParsesToTheSameBits) {
  for (const double value : {0.1, 1.0 / 3, 6e-4, 1e-300, 12345678.9}) {
    Sample sample;
    FieldList fields;
    fields.begin_section("a");
    fields.add("lr", sample.lr, "a rate");
    sample.lr = value;
    const std::string text = fields.get("a.lr", "").print();
    sample.lr = 0;
    fields.get("a.lr", "").parse(text);
    EXPECT_EQ(sample.lr, value) << text;
  }
}

TEST(FieldList, ReadsAnEmptyListAsNoElements) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  fields.get("eval.ids", "").parse("");
  EXPECT_TRUE(sample.ids.empty());
  EXPECT_EQ(fields.get("eval.ids", "").print(), "");
}

TEST(FieldList, AcceptsBothEndsOfARangeAndNothingBeyond) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  const Field& steps = fields.get("train.steps", "");
  steps.parse("2");
  EXPECT_EQ(sample.steps, 2);
  steps.parse("9");
  EXPECT_EQ(sample.steps, 9);
  for (const char* text : {"1", "10", "-3"})
    expect_error<ConfigError>([&] { steps.parse(text); }, {"train.steps", "2", "9", text});
  EXPECT_EQ(sample.steps, 9) << "a refused value must not be stored";
  const Field& betas = fields.get("train.betas", "");
  expect_error<ConfigError>([&] { betas.parse("0.5,1.5"); }, {"train.betas", "1.5"});
}

TEST(FieldList, RefusesTextThatIsNoNumber) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  for (const char* text : {"", "five", "5x", "5.5", "1e2", "99999999999999999999", "0x5"}) {
    expect_error<ConfigError>(
        [&] { fields.get("train.steps", "").parse(text); }, {"train.steps", text});
  }
  for (const char* text : {"", "fast", "0.5.5", "nan", "inf", "-inf", "1e999"}) {
    expect_error<ConfigError>([&] { fields.get("train.lr", "").parse(text); }, {"train.lr", text});
  }
  for (const char* text : {"1,,2", "a", "1;2"}) {
    expect_error<ConfigError>([&] { fields.get("eval.ids", "").parse(text); }, {"eval.ids"});
  }
}

TEST(FieldList, RefusesTextThatIsNoTruthValueOrChoice) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  for (const char* text : {"", "yes", "True", "2"}) {
    expect_error<ConfigError>(
        [&] { fields.get("train.is_fast", "").parse(text); }, {"train.is_fast", "true or false"});
    expect_error<ConfigError>(
        [&] { fields.get("eval.is_causal", "").parse(text); }, {"eval.is_causal"});
  }
  expect_error<ConfigError>(
      [&] { fields.get("eval.method", "").parse("forest"); },
      {"eval.method", "chain", "tree", "forest"});
}

TEST(FieldList, NamesTheNearestKeyForAnUnknownOne) {
  Sample sample;
  const FieldList fields = make_fields(sample);
  EXPECT_EQ(fields.find("train.step"), nullptr);
  EXPECT_EQ(fields.nearest_key("train.step"), "train.steps");
  EXPECT_EQ(fields.nearest_key("eval.metod"), "eval.method");
  EXPECT_EQ(fields.nearest_key("trian.lr"), "train.lr");
  EXPECT_EQ(fields.nearest_key("eval.method" + std::string(100'000'000, 'x')), "eval.method");
  expect_error<ConfigError>(
      [&] { fields.get("train.step", "run.toml"); },
      {"'train.step'", "run.toml", "Try train.steps"});
}

}  // namespace
}  // namespace draftsmith
