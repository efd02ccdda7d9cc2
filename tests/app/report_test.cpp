// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/app/tiny_program_run.h"

namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using formats::Json;
using testing::operator+;
using testing::Arguments;
using testing::expect_refused;

/// What the page holds: runs and evaluations.
Json shown_in(const fs::path& page) {
  const std::string text = read_file(page);
  const std::string begin = "<script type=\"application/json\" id=\"runs\">";
  const size_t first = text.find(begin) + begin.size();
  return Json::parse(text.substr(first, text.find("</script>", first) - first));
}

struct Report : testing::ProgramRuns {
  /// `eval --json` with a sweep, written to a file.
  fs::path evaluate(const std::string& name, const Arguments& more = {}) {
    const auto prompts = testing::write_prompts(folder, 4);
    const auto result = expect_done(
        Arguments{"eval"} + testing::tiny_settings(target) +
        Arguments{
            "--eval.prompts=" + prompts.string(), "--eval.max_new_tokens=8",
            "--eval.ignore_stop=true", "--json"} +
        more);
    return folder.write(name, result.out);
  }
};

TEST_F(Report, ShowsWhatAnEvaluationPrinted) {
  const auto file = evaluate("sweep.json", {"--eval.sweep=budget"});
  const Json printed = Json::parse(read_file(file));
  expect_done({"report", file.string()});
  const Json shown = shown_in(folder / "sweep.html");
  EXPECT_TRUE(shown.at("runs").empty());
  ASSERT_EQ(shown.at("evaluations").size(), 1U);
  const Json evaluation = shown.at("evaluations")[0];
  EXPECT_EQ(evaluation.at("name"), "sweep");
  EXPECT_EQ(evaluation.at("sweep").size(), printed.at("sweep").size());
  EXPECT_EQ(evaluation.at("fastest"), printed.at("fastest"));
  ASSERT_EQ(evaluation.at("methods").size(), 1U);
  const Json method = evaluation.at("methods")[0];
  EXPECT_EQ(method.at("method"), "chain");
  for (const char* key :
       {"responses", "rounds", "tokens", "acceptance_length", "acceptance_length_95",
        "mean_per_response", "by_slot", "histogram", "plain_tokens_per_s",
        "speculative_tokens_per_s", "speedup", "seconds"}) {
    EXPECT_EQ(method.at("total").at(key), printed.at(key)) << key;
    EXPECT_EQ(method.at("sets").at("odd").at(key), printed.at("sets").at("odd").at(key)) << key;
  }
}

TEST_F(Report, TellsWhatWasNotComparedFromWhatDiffers) {
  Json json = Json::parse(read_file(evaluate("equal.json")));
  const auto shown = [&](const Json& value) {
    json["is_identical"] = value;
    const auto file = folder.write("one.json", json.dump());
    expect_done({"report", file.string()});
    return shown_in(folder / "one.html").at("evaluations")[0].at("methods")[0].at("is_identical");
  };
  for (const Json& value : {Json(true), Json(false), Json()})
    EXPECT_EQ(shown(value), value);
}

TEST_F(Report, ShowsTheDrafterThatWasComparedBesideARun) {
  expect_done(train("run", 2));
  const auto file = evaluate("pair.json", {"--eval.compare=" + (folder / "run").string()});
  const auto page = folder / "both.html";
  expect_done({"report", (folder / "run").string(), file.string(), "--out", page.string()});
  const Json shown = shown_in(page);
  EXPECT_EQ(shown.at("runs").size(), 1U);
  const Json evaluation = shown.at("evaluations")[0];
  ASSERT_EQ(evaluation.at("methods").size(), 2U);
  EXPECT_EQ(evaluation.at("methods")[1].at("drafter"), (folder / "run").string());
  EXPECT_EQ(evaluation.at("difference_95").size(), 2U);
}

TEST_F(Report, PassesOverLinesThatAreNoFigures) {
  folder.write("run/settings.toml", "[train]\nname = \"odd\"\n");
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  folder.write(
      "run/metrics.jsonl",
      "{\"step\": 1, \"loss\": 2, \"wait\": 3, \"accuracy_by_slot\": {\"a\": 1}}\n"
      "{\"step\": 2, \"loss\": \"much\", \"wait\": {\"loader\": \"long\"}}\n"
      "{\"step\": 3, \"deep\": " +
          deep + "}\n");
  expect_done({"report", (folder / "run").string()});
  const Json run = shown_in(folder / "run/report.html").at("runs")[0];
  EXPECT_EQ(run.at("steps"), (Json{1, 2}));
  EXPECT_EQ(run.at("values").at("loss"), (Json{2, nullptr}));
  EXPECT_EQ(run.at("waits"), (Json{{"loader", {nullptr, nullptr}}}));
}

TEST_F(Report, NamesTheFigureThatIsNoneAndTheFile) {
  const Json whole = Json::parse(read_file(evaluate("good.json")));
  const auto refuse = [&](const Json& json, const std::vector<std::string>& parts) {
    const auto file = folder.write("bad.json", json.dump());
    expect_refused(folder, {"report", file.string()}, 3, parts + Arguments{"bad.json"});
  };
  refuse(Json::array(), {"an object"});
  for (const char* key :
       {"method", "histogram", "by_slot", "acceptance_length", "sets", "seconds"}) {
    Json json = whole;
    json[key] = nullptr;
    refuse(json, {key});
  }
  Json json = whole;
  json["histogram"] = {1, "many"};
  refuse(json, {"histogram", "a list of numbers"});
  json = whole;
  json["sweep"] = 3;
  refuse(json, {"sweep"});
  json = whole;
  json["sets"]["</script>"] = json["sets"]["odd"];
  const auto file = folder.write("name.json", json.dump());
  expect_done({"report", file.string()});
  EXPECT_EQ(
      shown_in(folder / "name.html").at("evaluations")[0].at("methods")[0].at("sets").size(), 3U);
}

}  // namespace
}  // namespace draftsmith::app
