/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stand-in for nvidia-modprobe: loads the modules. Device files come with them, so that nothing is
 * left to do for -c. Source: github.com/NVIDIA/nvidia-modprobe, nvidia-modprobe.1.m4.
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nv-version.h"

/* Installed setuid root: fixed program, fixed arguments, empty environment. */
static bool load(const char *module)
{
	char *environment[] = { NULL };
	int status;
	pid_t child = fork();

	if (child < 0)
		return false;
	if (!child) {
		if (setuid(0))
			_exit(126);
		execle("/sbin/modprobe", "modprobe", "-q", module, (char *)NULL, environment);
		_exit(127);
	}
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ "unified-memory", no_argument, NULL, 'u' },
		{ "modeset", no_argument, NULL, 'm' },
		{ "create-nvidia-device-file", required_argument, NULL, 'c' },
		{ NULL, 0, NULL, 0 },
	};
	bool uvm = false, modeset = false;
	int option;

	while ((option = getopt_long(argc, argv, "vhumc:", options, NULL)) != -1) {
		switch (option) {
		case 'v':
			printf("nvidia-modprobe:  version %s (simulated)\n", NV_VERSION_STRING);
			return EXIT_SUCCESS;
		case 'u': uvm = true; break;
		case 'm': modeset = true; break;
		case 'c': break;
		default:
			fprintf(option == 'h' ? stdout : stderr,
				"nvidia-modprobe [-u] [-m] [-c MINOR] [--version]\n");
			return option == 'h' ? EXIT_SUCCESS : EXIT_FAILURE;
		}
	}
	if (!load("nvidia") || (uvm && !load("nvidia-uvm")) || (modeset && !load("nvidia-modeset")))
		return EXIT_FAILURE;
	return EXIT_SUCCESS;
}
