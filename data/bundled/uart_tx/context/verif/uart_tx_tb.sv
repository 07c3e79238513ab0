`timescale 1ns / 1ps

module uart_tx_tb;
    reg         clk = 0;
    reg         rst = 1;
    reg  [15:0] baud_div = 4;
    reg  [1:0]  parity_mode = 2'b10;
    reg         two_stop = 0;
    reg  [7:0]  tx_data = 8'h00;
    reg         tx_valid = 0;
    wire        tx_ready, tx;
    reg  [10:0] want;
    integer     errors = 0;
    integer     edges;

    uart_tx dut (
        .clk(clk), .rst(rst), .baud_div(baud_div), .parity_mode(parity_mode), .two_stop(two_stop), .tx_data(tx_data),
        .tx_valid(tx_valid), .tx_ready(tx_ready), .tx(tx)
    );

    always #5 clk = ~clk;

    initial begin
        repeat (2) @(negedge clk);
        rst = 0;
        if (tx !== 1 || tx_ready !== 1) begin
            errors = errors + 1;
            $display("FAIL: idle: tx=%b tx_ready=%b", tx, tx_ready);
        end
        tx_data = 8'hb5;
        tx_valid = 1;
        want = {1'b1, 1'b1, 8'hb5, 1'b0};
        for (edges = 0; edges < 44; edges = edges + 1) begin
            @(negedge clk);
            tx_valid = 0;
            if (tx !== want[edges / 4] || tx_ready !== 0) begin
                errors = errors + 1;
                $display("FAIL: after edge %0d: tx=%b, expected %b; tx_ready=%b, expected 0", edges, tx, want[edges / 4], tx_ready);
            end
        end
        @(negedge clk);
        if (tx !== 1 || tx_ready !== 1) begin
            errors = errors + 1;
            $display("FAIL: after the frame: tx=%b tx_ready=%b", tx, tx_ready);
        end
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
