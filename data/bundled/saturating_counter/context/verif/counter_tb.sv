`timescale 1ns / 1ps

module counter_tb;
    reg        clk = 0;
    reg        rst_n = 0;
    reg        en = 0;
    reg        up = 1;
    reg        load = 0;
    reg  [3:0] load_value = 0;
    wire [3:0] count;
    wire       at_max, at_min, saturated;
    integer    errors = 0;

    counter #(.WIDTH(4), .MAX(4'd9)) dut (
        .clk(clk), .rst_n(rst_n), .en(en), .up(up), .load(load), .load_value(load_value), .count(count), .at_max(at_max),
        .at_min(at_min), .saturated(saturated)
    );

    always #5 clk = ~clk;

    task check(input [3:0] want, input want_saturated);
        begin
            @(negedge clk);
            if (count !== want || saturated !== want_saturated || at_max !== (want == 9) || at_min !== (want == 0)) begin
                errors = errors + 1;
                $display("FAIL: t=%0t count=%0d saturated=%b at_max=%b at_min=%b, expected count=%0d saturated=%b", $time, count,
                         saturated, at_max, at_min, want, want_saturated);
            end
        end
    endtask

    initial begin
        check(0, 0);
        rst_n = 1;
        check(0, 0);
        load = 1;
        load_value = 8;
        check(8, 0);
        load = 0;
        en = 1;
        check(9, 0);
        check(9, 1);
        up = 0;
        check(8, 0);
        load = 1;
        load_value = 12;
        check(9, 1);
        load_value = 1;
        check(1, 0);
        load = 0;
        check(0, 0);
        check(0, 1);
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
