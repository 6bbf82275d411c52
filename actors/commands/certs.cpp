// `millrace certs`: certificates with which the nodes of one cluster know each other.

#include "actors/certificates.hpp"
#include "actors/commands.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>

namespace millrace {

void add_certs_command(CLI::App& app, int& status) {
  struct arguments {
    std::string folder;
    int days = 365;
  };
  auto* cmd = app.add_subcommand("certs", "Make the certificates of a cluster");
  auto a = std::make_shared<arguments>();
  cmd->add_option("folder", a->folder, "Where they go; copy it to every host")->required();
  cmd->add_option("--days", a->days, "Days until they expire")->check(CLI::Range(1, 36500));
  cmd->callback([a, &status] {
    auto files = make_certificates(std::filesystem::absolute(a->folder), a->days);
    std::printf("Copy this folder to every host, and put this into the configuration:\n\n"
                "  \"cluster\": {\n    \"tls\": {\n      \"ca\": \"%s\",\n"
                "      \"certificate\": \"%s\",\n      \"key\": \"%s\"\n    },\n    …\n  }\n\n"
                "Whoever has node.key can join the cluster and run code in it: keep it secret.\n",
                files.ca.c_str(), files.certificate.c_str(), files.key.c_str());
    status = 0;
  });
}

} // namespace millrace
