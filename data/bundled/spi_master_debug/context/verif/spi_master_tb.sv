`timescale 1ns / 1ps

// Sends words in all four modes with mosi connected to miso, and measures how long the transfers last.
module spi_master_tb;
  localparam WIDTH = 8;

  logic clk = 1'b0;
  logic rst_n = 1'b0;
  logic start = 1'b0;
  logic [WIDTH-1:0] tx_data = '0;
  logic cpol = 1'b0;
  logic cpha = 1'b0;
  logic [7:0] clk_div = 8'd0;
  logic busy, done, sclk, mosi, cs_n;
  logic [WIDTH-1:0] rx_data;
  integer errors = 0;
  integer cycles, mode, div;

  spi_master #(.WIDTH(WIDTH)) dut (
    .clk(clk), .rst_n(rst_n), .start(start), .tx_data(tx_data), .cpol(cpol), .cpha(cpha), .clk_div(clk_div), .busy(busy),
    .done(done), .rx_data(rx_data), .sclk(sclk), .mosi(mosi), .cs_n(cs_n), .miso(mosi)
  );

  always #5 clk = ~clk;

  task automatic check(input string what, input integer got, input integer want);
    if (got !== want) begin
      errors = errors + 1;
      if (errors < 20)
        $display("FAIL: at %0t, mode %0d, clk_div %0d: %s is %0d, expected %0d", $time, mode, div, what, got, want);
    end
  endtask

  task automatic transfer(input [WIDTH-1:0] word);
    cpol = mode[1];
    cpha = mode[0];
    clk_div = div;
    tx_data = word;
    start = 1'b1;
    @(negedge clk);
    start = 1'b0;
    check("busy after start", busy, 1);
    check("cs_n after start", cs_n, 0);
    check("sclk after start", sclk, cpol);
    check("done after start", done, 0);
    tx_data = ~word;
    cycles = 0;
    while (busy === 1'b1 && cycles < 1000) begin
      cycles = cycles + 1;
      @(negedge clk);
    end
    check("length of the transfer in cycles", cycles, (2 * WIDTH + 1) * (div + 1));
    check("done", done, 1);
    check("cs_n at the end", cs_n, 1);
    check("sclk at the end", sclk, cpol);
    check("received word", rx_data, word);
  endtask

  initial begin
    mode = 0;
    div = 0;
    repeat (2) @(negedge clk);
    check("cs_n in reset", cs_n, 1);
    check("busy in reset", busy, 0);
    rst_n = 1'b1;
    @(negedge clk);
    for (mode = 0; mode < 4; mode = mode + 1) begin
      for (div = 0; div < 4; div = div + 1) begin
        transfer(8'h96 + mode);
        transfer($random);
        @(negedge clk);
        check("done one cycle later", done, 0);
      end
    end
    if (errors == 0) $display("PASS");
    else $fatal(1, "FAIL: %0d checks failed", errors);
    $finish;
  end
endmodule
