`timescale 1ns / 1ps

module tb_adder_clamp;
  reg [15:0] both;
  wire [7:0] a = both[15:8], b = both[7:0];
  wire [7:0] y;
  wire full;
  integer i, error = 0;
  reg [8:0] sum;

  adder_clamp uut (a, b, y, full);

  initial begin
    for (i = 0; i < 100; i = i + 1) begin
      both[15:8] = $random;
      both[7:0] = $random;
      #10;
      sum = a + b;
      if (y !== (sum[8] ? 8'd255 : sum[7:0]) || full !== sum[8]) begin
        error = error + 1;
        $display("Wrong: a = %d, b = %d, y = %d, full = %b", a, b, y, full);
      end
    end
    /* the verdict */
    if (error == 0)
      $display("=========== Your Design Passed ===========");
    else
      $display("=========== Test completed with %d /100 failures ===========", error);
    $finish;
  end
endmodule
