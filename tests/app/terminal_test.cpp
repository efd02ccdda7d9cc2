// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/app/tiny_program_run.h"

namespace draftsmith::app {
namespace {

using testing::Arguments;

/// Runs the program on a terminal of so many columns; all that it wrote there.
std::string run_on_terminal(const Arguments& arguments, uint16_t columns) {
  const winsize size{24, columns, 0, 0};
  int terminal = 0;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    std::vector<char*> argv = {const_cast<char*>(DS_PROGRAM)};
    for (const auto& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(DS_PROGRAM, argv.data());
    ::_exit(127);
  }
  std::string text;
  char piece[4096];
  for (ssize_t count = 0; (count = ::read(terminal, piece, sizeof(piece))) > 0;)
    text.append(piece, static_cast<size_t>(count));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_EQ(status, 0) << text;
  return text;
}

struct Terminal : testing::ProgramRuns {};

TEST_F(Terminal, ShowsOneLineThatIsRewrittenAndNeverWraps) {
  for (const uint16_t columns : {uint16_t{60}, uint16_t{200}}) {
    const std::string name = fmt::format("run-{}", columns);
    const std::string text = run_on_terminal(train(name, 60), columns);
    std::string widest;
    size_t bars = 0;
    for (size_t at = text.find("\r\x1b[K["); at != std::string::npos;
         at = text.find("\r\x1b[K[", at + 1)) {
      const size_t begin = at + 4;
      const std::string bar = text.substr(begin, text.find_first_of("\r\n", begin) - begin);
      EXPECT_LT(bar.size(), columns) << bar;
      if (bar.find("training") != std::string::npos && bar.size() > widest.size()) widest = bar;
      ++bars;
    }
    EXPECT_GE(bars, 2U);
    EXPECT_NE(text.find("\r\x1b[K[##"), std::string::npos);
    for (const char* part : {"training ", "/60", "ETA ", "loss "})
      EXPECT_NE(widest.find(part), std::string::npos) << part << " in: " << widest;
    if (columns == 200) {
      for (const char* part : {"expected acceptance ", " tokens/s", " steps/s"})
        EXPECT_NE(widest.find(part), std::string::npos) << part << " in: " << widest;
    }
    // What is said in between stands on lines of its own, and the log has no bars.
    EXPECT_NE(text.find("\ntrained 60 steps"), std::string::npos) << text;
    EXPECT_EQ(read_file(folder / name / "log.txt").find('\r'), std::string::npos);
  }
}

TEST_F(Terminal, ShowsTheMaskInColour) {
  auto sequence = testing::make_sequence(4, 2, 1);
  sequence.ids = {10, 11, 12, 13};
  const auto shown = testing::write_dataset_folder(folder, "shown", {sequence});
  const std::string text =
      run_on_terminal({"data", "--data.path=" + shown.string(), "--show=1"}, 80);
  EXPECT_NE(text.find("10 11 \x1b[30;42m12 13 \x1b[0m"), std::string::npos) << text;
}

}  // namespace
}  // namespace draftsmith::app
