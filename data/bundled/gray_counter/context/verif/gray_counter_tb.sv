`timescale 1ns / 1ps

module gray_counter_tb;
    localparam WIDTH = 3;

    reg              clk = 0;
    reg              rst = 1;
    reg              en = 0;
    reg              down = 0;
    reg  [WIDTH-1:0] want = 0;
    wire [WIDTH-1:0] gray, binary;
    integer          errors = 0;

    gray_counter #(.WIDTH(WIDTH)) dut (.clk(clk), .rst(rst), .en(en), .down(down), .gray(gray), .binary(binary));

    always #5 clk = ~clk;

    task check;
        begin
            @(negedge clk);
            if (gray !== (want ^ (want >> 1)) || binary !== want) begin
                errors = errors + 1;
                $display("FAIL: t=%0t gray=%b binary=%0d, expected gray=%b binary=%0d", $time, gray, binary, want ^ (want >> 1),
                         want);
            end
        end
    endtask

    initial begin
        check;
        rst = 0;
        en = 1;
        repeat (10) begin
            want = want + 1'b1;
            check;
        end
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
